#define _GNU_SOURCE
#include "request.h"

#include "common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MARK = 16 }; /* characters that make each prompt different from its first ones on */

struct want want = {.clients = 1, .tokens = 16, .stream = 1, .prompt = 600, .timeout = 60, .model = "bench"};

static const struct option {
    const char *name;
    long *number;
    const char **text;
} options[] = {
    {"--port", &want.port, NULL},
    {"--clients", &want.clients, NULL},         /* at once */
    {"--requests", &want.requests, NULL},       /* in all; as many as clients when not given */
    {"--tokens", &want.tokens, NULL},           /* of each answer */
    {"--stream", &want.stream, NULL},           /* 1 or 0 */
    {"--usage", &want.usage, NULL},             /* 1: ask for the usage of a stream */
    {"--prompt", &want.prompt, NULL},           /* bytes */
    {"--ramp-ms", &want.ramp_ms, NULL},         /* in which the clients begin, one after the other */
    {"--rate", &want.rate, NULL},               /* requests a second, of an open loop */
    {"--seconds", &want.seconds, NULL},         /* of an open loop */
    {"--fresh", &want.fresh, NULL},             /* 1: a new connection for each request */
    {"--leave-after", &want.leave_after, NULL}, /* tokens after which the client closes its connection */
    {"--leave-ms", &want.leave_ms, NULL},       /* time after which it does */
    {"--hold", &want.hold, NULL},               /* 1: keep the connections open until the standard input ends */
    {"--timeout", &want.timeout, NULL},         /* seconds for a request */
    {"--keys", NULL, &want.keys},               /* a file of keys, a line each, used in turn */
    {"--model", NULL, &want.model},
};

bool understood(const char *name, const char *value)
{
    for (size_t at = 0; at < sizeof options / sizeof *options; at++) {
        if (strcmp(options[at].name, name) != 0)
            continue;
        if (options[at].text != NULL)
            *options[at].text = value;
        else
            *options[at].number = strtol(value, NULL, 10);
        return true;
    }
    return false;
}

struct text {
    char *at;
    size_t length;
};

static struct text before_key, after_key, after_mark; /* a request is these three with key and mark between */
static struct text *keys;
static size_t key_count;

static struct text text_of(char *at)
{
    return (struct text){at, strlen(at)};
}

static void add_key(const char *key)
{
    keys = grown(keys, (key_count + 1) * sizeof *keys);
    keys[key_count++] = text_of(strdup(key));
}

static void read_keys(void)
{
    FILE *file = fopen(want.keys, "r");
    char *line = NULL;
    size_t room = 0;
    if (file == NULL)
        die(want.keys);
    while (getline(&line, &room, file) > 0) {
        line[strcspn(line, "\n")] = 0;
        add_key(line);
    }
    free(line);
    fclose(file);
}

void prepare_requests(void)
{
    static const char words[] = "the quick brown fox jumps over the lazy dog and writes tokens; ";
    size_t prompt = want.prompt > MARK ? (size_t)want.prompt - MARK : 0, length = 0;
    char *before, *after, *body, *rest = grown(NULL, prompt + 256);
    if (want.requests == 0)
        want.requests = want.clients;
    if (want.keys != NULL)
        read_keys();
    if (key_count == 0)
        add_key("none");
    for (; length < prompt; length++)
        rest[length] = words[length % (sizeof words - 1)];
    sprintf(rest + length, "\"}],\"max_tokens\":%ld,\"temperature\":0.7,\"stream\":%s%s}", want.tokens,
            want.stream ? "true" : "false", want.usage ? ",\"stream_options\":{\"include_usage\":true}" : "");
    after_mark = text_of(rest);
    if (asprintf(&body, "{\"model\":\"%s\",\"messages\":[{\"role\":\"user\",\"content\":\"", want.model) < 0 ||
        asprintf(&before,
                 "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%ld\r\nAccept: application/json\r\n"
                 "Content-Type: application/json\r\nUser-Agent: bench\r\nAuthorization: Bearer ",
                 want.port) < 0 ||
        asprintf(&after, "\r\nContent-Length: %zu\r\n\r\n%s", strlen(body) + MARK + after_mark.length, body) < 0)
        die("memory");
    before_key = text_of(before);
    after_key = text_of(after);
    free(body);
}

int request_rest(unsigned long number, size_t sent, struct iovec *rest)
{
    static char mark[MARK + 1];
    int count = 0;
    snprintf(mark, sizeof mark, "%0*lx", MARK, number);
    const struct text parts[] = {before_key, keys[number % key_count], after_key, {mark, MARK}, after_mark};
    for (int at = 0; at < REQUEST_PARTS; at++) {
        size_t skip = sent < parts[at].length ? sent : parts[at].length;
        sent -= skip;
        if (skip < parts[at].length)
            rest[count++] = (struct iovec){parts[at].at + skip, parts[at].length - skip};
    }
    return count;
}
