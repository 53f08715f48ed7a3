/* What engine and load share: time, memory, bytes that come and go, HTTP fields, and the text of a token. */
#ifndef COMMON_H
#define COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Microseconds of CLOCK_MONOTONIC, which all processes of a machine share. */
uint64_t now_us(void);

/* Print `what` with errno's text and end. */
_Noreturn void die(const char *what);

/* realloc() that does not fail. */
void *grown(void *memory, size_t size);

/* Raise the limit of open files as far as this process may. */
void allow_many_files(void);

/* Where `word` begins in the text, NULL when it does not. */
const char *find(const char *text, size_t length, const char *word);

/* The value of a hexadecimal digit, -1 for any other character. */
int hex_digit(char digit);

/* Bytes that are appended at one end and taken from the other. */
struct buffer {
    char *data;
    size_t start, length, capacity;
};

/* Room for `size` more bytes behind what is there; add to `length` what was written. */
char *buffer_room(struct buffer *buffer, size_t size);
void buffer_take(struct buffer *buffer, size_t size);
void buffer_free(struct buffer *buffer);

/* A field of an HTTP head (from its first line to the empty one): its value and length, NULL when it is not there. */
const char *head_field(const char *head, size_t length, const char *name, size_t *value_length);

/* Whether a field is there and holds the word, in any case of its letters. */
bool head_says(const char *head, size_t length, const char *name, const char *word);

/* A token's text says which one of its answer it is and when it was sent: " 0002a.0001c3f5a7b". */
enum { TOKEN_LENGTH = 18 };
void token_write(char *text, unsigned number, uint64_t sent_us);
bool token_read(const char *text, size_t length, unsigned *number, uint64_t *sent_us);

#endif
