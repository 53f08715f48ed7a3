#define _GNU_SOURCE
#include "answer.h"

#include <stdlib.h>
#include <string.h>

enum { TEXT_MOST = 1 << 20 };

void answer_expect(struct answer *answer, unsigned tokens, bool streamed, bool usage_asked, uint64_t begun_us)
{
    struct buffer text = answer->text;
    unsigned char *bits = grown(answer->seen, tokens / 8 + 1);
    text.start = text.length = 0;
    memset(bits, 0, tokens / 8 + 1);
    *answer = (struct answer){
        .tokens_wanted = tokens,
        .streamed = streamed,
        .usage_asked = usage_asked,
        .begun_us = begun_us,
        .text = text,
        .seen = bits,
    };
}

static void keep(struct answer *answer, const char *data, size_t length)
{
    memcpy(buffer_room(&answer->text, length), data, length);
    answer->text.length += length;
}

/* --- tokens ------------------------------------------------------------------------------------------------------ */

static void take_token(struct answer *answer, struct tally *tally, const char *text, size_t length, uint64_t now)
{
    unsigned number;
    uint64_t sent;
    if (!token_read(text, length, &number, &sent) || number >= answer->tokens_wanted) {
        tally->wrong++;
        return;
    }
    unsigned char bit = (unsigned char)(1 << number % 8);
    if (answer->seen[number / 8] & bit) {
        tally->doubled++;
        return;
    }
    if (number < answer->next)
        tally->reordered++;
    else
        answer->next = number + 1;
    answer->seen[number / 8] |= bit;
    if (answer->tokens == 0)
        histogram_add(&tally->first_us, now - answer->begun_us);
    histogram_add(&tally->transit_us, now > sent ? now - sent : 0);
    answer->tokens++;
    tally->tokens++;
}

static void take_line(struct answer *answer, struct tally *tally, const char *line, size_t length, uint64_t now)
{
    static const char DATA[] = "data: ", CONTENT[] = "\"content\":\"";
    if (length < sizeof DATA - 1 || memcmp(line, DATA, sizeof DATA - 1) != 0)
        return; /* an empty line, or a comment */
    line += sizeof DATA - 1;
    length -= sizeof DATA - 1;
    if (length == 6 && memcmp(line, "[DONE]", 6) == 0) {
        answer->done = true;
        return;
    }
    const char *content = find(line, length, CONTENT);
    if (content != NULL) {
        content += sizeof CONTENT - 1;
        const char *end = memchr(content, '"', length - (size_t)(content - line));
        if (end != NULL && end > content)
            take_token(answer, tally, content, (size_t)(end - content), now);
    } else if (!answer->usage_asked || find(line, length, "\"usage\":{") == NULL) {
        tally->unasked++;
    }
}

static void take_body(struct answer *answer, struct tally *tally, const char *data, size_t length, uint64_t now)
{
    if (!answer->streamed) {
        keep(answer, data, length);
        return;
    }
    const char *end;
    while ((end = memchr(data, '\n', length)) != NULL) {
        size_t part = (size_t)(end - data);
        if (answer->text.length > 0) {
            keep(answer, data, part);
            take_line(answer, tally, answer->text.data + answer->text.start, answer->text.length, now);
            answer->text.start = answer->text.length = 0;
        } else {
            take_line(answer, tally, data, part, now);
        }
        data += part + 1;
        length -= part + 1;
    }
    keep(answer, data, length);
}

/* --- framing ----------------------------------------------------------------------------------------------------- */

/* Take a head that is complete; false when it is none. */
static bool take_head(struct answer *answer, const char *head, size_t length)
{
    size_t size;
    if (length < 16 || memcmp(head, "HTTP/1.", 7) != 0)
        return false;
    answer->status = atoi(head + 9);
    answer->keep_alive = head[7] == '1' && !head_says(head, length, "connection", "close");
    if (answer->status != 200)
        answer->streamed = false; /* its body is an error's */
    const char *count = head_field(head, length, "content-length", &size);
    if (head_says(head, length, "transfer-encoding", "chunked")) {
        answer->phase = PHASE_SIZE;
    } else {
        answer->phase = PHASE_PLAIN;
        answer->counted = count != NULL;
        answer->left = count != NULL ? strtoull(count, NULL, 10) : 0;
        answer->keep_alive = answer->keep_alive && answer->counted;
    }
    return true;
}

/* One byte of the framing of a chunked body. */
static enum progress take_frame(struct answer *answer, char byte)
{
    int digit = hex_digit(byte);
    switch (answer->phase) {
    case PHASE_SIZE:
        if (digit >= 0) {
            answer->digits = true;
            answer->left = answer->left * 16 + (uint64_t)digit;
            return answer->left > TEXT_MOST ? BROKEN : MORE;
        }
        answer->phase = PHASE_EXTENSION;
        return answer->digits && (byte == '\r' || byte == ';') ? MORE : BROKEN;
    case PHASE_EXTENSION:
        if (byte == '\n') {
            answer->digits = false;
            answer->phase = answer->left > 0 ? PHASE_DATA : PHASE_TRAILER;
        }
        return MORE;
    case PHASE_DATA_END:
        if (byte == '\n')
            answer->phase = PHASE_SIZE;
        return byte == '\n' || byte == '\r' ? MORE : BROKEN;
    default: /* the empty line behind the last chunk: trailers come from nobody here */
        return byte == '\n' ? COMPLETE : byte == '\r' ? MORE : BROKEN;
    }
}

enum progress answer_read(struct answer *answer, struct tally *tally, const char *data, size_t length, uint64_t now)
{
    answer->any = answer->any || length > 0;
    if (answer->phase == PHASE_HEAD) {
        size_t before = answer->text.length;
        keep(answer, data, length);
        const char *head = answer->text.data + answer->text.start, *end = find(head, answer->text.length, "\r\n\r\n");
        if (end == NULL)
            return answer->text.length > TEXT_MOST ? BROKEN : MORE;
        size_t head_length = (size_t)(end - head) + 4;
        if (!take_head(answer, head, head_length))
            return BROKEN;
        answer->text.start = answer->text.length = 0;
        data += head_length - before;
        length -= head_length - before;
    }
    while (length > 0) {
        size_t part = 1;
        enum progress progress = MORE;
        if (answer->phase == PHASE_PLAIN || answer->phase == PHASE_DATA) {
            part = length;
            if ((answer->phase == PHASE_DATA || answer->counted) && answer->left < part)
                part = answer->left;
            if (part == 0)
                return BROKEN; /* more than was announced */
            take_body(answer, tally, data, part, now);
            answer->left -= part;
            if (answer->phase == PHASE_DATA && answer->left == 0)
                answer->phase = PHASE_DATA_END;
        } else {
            progress = take_frame(answer, *data);
        }
        data += part;
        length -= part;
        if (progress == BROKEN || answer->text.length > TEXT_MOST)
            return BROKEN;
        if (progress == COMPLETE)
            return length == 0 ? COMPLETE : BROKEN;
    }
    return answer->phase == PHASE_PLAIN && answer->counted && answer->left == 0 ? COMPLETE : MORE;
}

enum progress answer_eof(const struct answer *answer)
{
    return answer->phase == PHASE_PLAIN && !answer->counted ? COMPLETE : BROKEN;
}

bool answer_judge(struct answer *answer, struct tally *tally)
{
    if (!answer->streamed) {
        const char *text = answer->text.data + answer->text.start, *end = text + answer->text.length, *word = text;
        for (; (word = find(word, (size_t)(end - word), " token")) != NULL; word += 6)
            answer->tokens++;
        tally->tokens += answer->tokens;
        if (answer->tokens > answer->tokens_wanted)
            tally->wrong += answer->tokens - answer->tokens_wanted;
        answer->done = find(text, answer->text.length, "\"finish_reason\":\"length\"") != NULL;
    }
    if (!answer->done)
        tally->unended++;
    if (answer->tokens < answer->tokens_wanted)
        tally->missing += answer->tokens_wanted - answer->tokens;
    return answer->done && answer->tokens == answer->tokens_wanted;
}
