#include "generation.h"

#include "common.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const char *const fault_names[FAULTS] = {"none", "lose", "double", "swap", "alter", "cut"};
const char *model_name = "bench";

static const char EVENT[] = "data: {\"id\":\"%s\",\"object\":\"chat.completion.chunk\",\"created\":%ld,\"model\":\"%s\",";
static const char TOKEN[] = "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%s\"},\"logprobs\":null,"
                            "\"finish_reason\":%s,\"token_ids\":null}]}\n\n";
static const char ROLE[] = "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                           "\"logprobs\":null,\"finish_reason\":null}],\"prompt_token_ids\":null}\n\n";
static const char USAGE[] = "\"choices\":[],\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu,"
                            "\"completion_tokens\":%u}}\n\n";
static const char ANSWER[] = "{\"id\":\"%s\",\"object\":\"chat.completion\",\"created\":%ld,\"model\":\"%s\",\"choices\":"
                             "[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"";
static const char ANSWER_REST[] =
    "\",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,\"tool_calls\":[],"
    "\"reasoning_content\":null},\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null,"
    "\"token_ids\":null}],\"service_tier\":null,\"system_fingerprint\":null,\"usage\":{\"prompt_tokens\":%zu,"
    "\"total_tokens\":%zu,\"completion_tokens\":%u,\"prompt_tokens_details\":null},\"prompt_logprobs\":null,"
    "\"prompt_token_ids\":null,\"kv_transfer_params\":null}";
static const char WORD[] = " token";

/* The first character of the value of a key, wherever the key stands; NULL when it does not. */
static const char *value_of(const char *body, size_t length, const char *key)
{
    const char *end = body + length, *at = find(body, length, key);
    if (at == NULL)
        return NULL;
    at += strlen(key);
    while (at < end && (isspace((unsigned char)*at) || *at == ':'))
        at++;
    return at < end ? at : NULL;
}

static bool is_true(const char *value)
{
    return value != NULL && *value == 't';
}

/* One chunk of a chunked body. */
static size_t chunk(char *piece, const char *data, size_t length)
{
    int head = sprintf(piece, "%zx\r\n", length);
    memcpy(piece + head, data, length);
    memcpy(piece + head + length, "\r\n", 2);
    return (size_t)head + length + 2;
}

/* An event of a stream in one chunk. */
static size_t event(const struct generation *generation, char *piece, const char *rest, ...)
{
    char data[PIECE_MOST - 16];
    int begin = snprintf(data, sizeof data, EVENT, generation->id, generation->created, model_name);
    va_list values;
    va_start(values, rest);
    int more = vsnprintf(data + begin, sizeof data - (size_t)begin, rest, values);
    va_end(values);
    return chunk(piece, data, (size_t)(begin + more));
}

bool generation_begin(struct generation *generation, const char *body, size_t length)
{
    static unsigned long long number;
    if (length == 0 || *body != '{')
        return false;
    const char *tokens = value_of(body, length, "\"max_tokens\"");
    long wanted = tokens != NULL ? strtol(tokens, NULL, 10) : 16;
    *generation = (struct generation){
        .stream = is_true(value_of(body, length, "\"stream\"")),
        .wants_usage = is_true(value_of(body, length, "\"include_usage\"")),
        .tokens = wanted < 1 ? 1 : wanted > 1000000 ? 1000000 : (unsigned)wanted,
        .prompt_tokens = length / 4 + 1,
        .began_us = now_us(),
        .created = time(NULL),
    };
    snprintf(generation->id, sizeof generation->id, "chatcmpl-%030llx", ++number);
    if (generation->stream) {
        static const char blank[TOKEN_LENGTH + 1] = "##################";
        generation->frame_length = event(generation, generation->frame, TOKEN, blank, "null");
        generation->frame_text = (size_t)(find(generation->frame, generation->frame_length, blank) - generation->frame);
    }
    return true;
}

size_t generation_head(char *head, bool keep_alive)
{
    return (size_t)sprintf(head,
                           "HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
                           "content-type: text/event-stream; charset=utf-8\r\n%stransfer-encoding: chunked\r\n\r\n",
                           keep_alive ? "" : "connection: close\r\n");
}

static size_t token(struct generation *generation, unsigned number, char *piece)
{
    if (number + 1 >= generation->tokens) {
        char text[TOKEN_LENGTH + 1] = "";
        token_write(text, number, now_us());
        return event(generation, piece, TOKEN, text, "\"length\"");
    }
    memcpy(piece, generation->frame, generation->frame_length);
    token_write(piece + generation->frame_text, number, now_us());
    return generation->frame_length;
}

static const char ALTERED[] = " 0000"; /* how the text of one of the first tokens begins, and nothing else */

static size_t next_token(struct generation *generation, enum fault fault, unsigned fault_at, char *piece)
{
    unsigned number = generation->made++;
    size_t length;
    if (fault == FAULT_SWAP && number / 2 == fault_at / 2 && (number ^ 1) < generation->tokens)
        return token(generation, number ^ 1, piece);
    if (number != fault_at)
        return token(generation, number, piece);
    switch (fault) {
    case FAULT_LOSE:
        return 0;
    case FAULT_DOUBLE:
        length = token(generation, number, piece);
        return length + token(generation, number, piece + length);
    case FAULT_ALTER:
        length = token(generation, number, piece);
        piece[find(piece, length, ALTERED) - piece] = '?';
        return length;
    default:
        return token(generation, number, piece);
    }
}

size_t generation_next(struct generation *generation, enum fault fault, unsigned fault_at, char *piece)
{
    size_t prompt = generation->prompt_tokens;
    switch (generation->next) {
    case PIECE_ROLE:
        generation->next = PIECE_TOKEN;
        return event(generation, piece, ROLE);
    case PIECE_TOKEN:
        if (generation->made + 1 >= generation->tokens)
            generation->next = generation->wants_usage ? PIECE_USAGE : PIECE_DONE;
        return next_token(generation, fault, fault_at, piece);
    case PIECE_USAGE:
        generation->next = PIECE_DONE;
        return event(generation, piece, USAGE, prompt, prompt + generation->made, generation->made);
    case PIECE_DONE:
        generation->next = PIECE_END;
        return chunk(piece, "data: [DONE]\n\n", 14);
    case PIECE_END:
        generation->next = PIECE_NOTHING;
        memcpy(piece, "0\r\n\r\n", 5);
        return 5;
    default:
        return 0;
    }
}

char *generation_whole(struct generation *generation, bool keep_alive, size_t *length)
{
    size_t prompt = generation->prompt_tokens, words = generation->tokens * (sizeof WORD - 1);
    size_t room = words + sizeof ANSWER + sizeof ANSWER_REST + 256;
    char *body = grown(NULL, room), *answer = grown(NULL, room + 512);
    size_t size = (size_t)sprintf(body, ANSWER, generation->id, generation->created, model_name);
    for (; generation->made < generation->tokens; generation->made++, size += sizeof WORD - 1)
        memcpy(body + size, WORD, sizeof WORD - 1);
    sprintf(body + size, ANSWER_REST, prompt, prompt + generation->tokens, generation->tokens);
    *length = plain_answer(answer, room + 512, 200, "application/json", body, keep_alive);
    free(body);
    return answer;
}

int other_body(const char *path, size_t length, unsigned long running, unsigned long made, char *body, size_t room,
               const char **type)
{
    const char *name = model_name;
    *type = "application/json";
    if (length == 7 && memcmp(path, "/health", length) == 0) {
        *body = 0;
    } else if (length == 10 && memcmp(path, "/v1/models", length) == 0) {
        snprintf(body, room,
                 "{\"object\":\"list\",\"data\":[{\"id\":\"%s\",\"object\":\"model\",\"created\":1,"
                 "\"owned_by\":\"vllm\",\"root\":\"%s\",\"max_model_len\":32768}]}",
                 name, name);
    } else if (length == 8 && memcmp(path, "/metrics", length) == 0) {
        *type = "text/plain; version=0.0.4; charset=utf-8";
        snprintf(body, room,
                 "vllm:num_requests_running{engine=\"0\",model_name=\"%s\"} %lu\n"
                 "vllm:num_requests_waiting{engine=\"0\",model_name=\"%s\"} 0\n"
                 "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"%s\"} %.4f\n"
                 "vllm:num_preemptions_total{engine=\"0\",model_name=\"%s\"} 0\n"
                 "vllm:generation_tokens_total{engine=\"0\",model_name=\"%s\"} %lu\n",
                 name, running, name, name, (double)running / 65536, name, name, made);
    } else {
        snprintf(body, room, "{\"detail\":\"Not Found\"}");
        return 404;
    }
    return 200;
}

size_t plain_answer(char *to, size_t room, int status, const char *type, const char *body, bool keep_alive)
{
    int length = snprintf(to, room,
                          "HTTP/1.1 %d %s\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
                          "content-length: %zu\r\ncontent-type: %s\r\n%s\r\n%s",
                          status, status == 200 ? "OK" : "Error", strlen(body), type,
                          keep_alive ? "" : "connection: close\r\n", body);
    return (size_t)length;
}
