#define _GNU_SOURCE
#include "common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <time.h>

uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

_Noreturn void die(const char *what)
{
    perror(what);
    exit(1);
}

void *grown(void *memory, size_t size)
{
    memory = realloc(memory, size);
    if (memory == NULL)
        die("memory");
    return memory;
}

void allow_many_files(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

const char *find(const char *text, size_t length, const char *word)
{
    return memmem(text, length, word, strlen(word));
}

int hex_digit(char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    digit |= 0x20;
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

char *buffer_room(struct buffer *buffer, size_t size)
{
    if (buffer->start + buffer->length + size > buffer->capacity && buffer->start > 0) {
        memmove(buffer->data, buffer->data + buffer->start, buffer->length);
        buffer->start = 0;
    }
    if (buffer->length + size > buffer->capacity) {
        buffer->capacity = 2 * (buffer->length + size);
        buffer->data = grown(buffer->data, buffer->capacity);
    }
    return buffer->data + buffer->start + buffer->length;
}

void buffer_take(struct buffer *buffer, size_t size)
{
    buffer->length -= size;
    buffer->start = buffer->length > 0 ? buffer->start + size : 0;
}

void buffer_free(struct buffer *buffer)
{
    free(buffer->data);
    memset(buffer, 0, sizeof *buffer);
}

const char *head_field(const char *head, size_t length, const char *name, size_t *value_length)
{
    size_t name_length = strlen(name);
    const char *end = head + length, *line = head;
    while ((line = memmem(line, (size_t)(end - line), "\r\n", 2)) != NULL) {
        line += 2;
        if ((size_t)(end - line) <= name_length || strncasecmp(line, name, name_length) != 0 || line[name_length] != ':')
            continue;
        const char *value = line + name_length + 1;
        const char *stop = memmem(value, (size_t)(end - value), "\r\n", 2);
        if (stop == NULL)
            stop = end;
        while (value < stop && *value == ' ')
            value++;
        *value_length = (size_t)(stop - value);
        return value;
    }
    return NULL;
}

bool head_says(const char *head, size_t length, const char *name, const char *word)
{
    size_t size, word_length = strlen(word);
    const char *value = head_field(head, length, name, &size);
    if (value == NULL)
        return false;
    for (size_t at = 0; at + word_length <= size; at++)
        if (strncasecmp(value + at, word, word_length) == 0)
            return true;
    return false;
}

static const char DIGITS[] = "0123456789abcdef";

void token_write(char *text, unsigned number, uint64_t sent_us)
{
    text[0] = ' ';
    for (int at = 5; at >= 1; at--, number >>= 4)
        text[at] = DIGITS[number & 15];
    text[6] = '.';
    for (int at = TOKEN_LENGTH - 1; at >= 7; at--, sent_us >>= 4)
        text[at] = DIGITS[sent_us & 15];
}

bool token_read(const char *text, size_t length, unsigned *number, uint64_t *sent_us)
{
    if (length != TOKEN_LENGTH || text[0] != ' ' || text[6] != '.')
        return false;
    *number = 0;
    *sent_us = 0;
    for (int at = 1; at < TOKEN_LENGTH; at++) {
        int digit = hex_digit(text[at]);
        if (at == 6)
            continue;
        if (digit < 0)
            return false;
        if (at < 6)
            *number = *number * 16 + (unsigned)digit;
        else
            *sent_us = *sent_us * 16 + (uint64_t)digit;
    }
    return true;
}
