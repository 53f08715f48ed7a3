/* What vLLM 0.32 under uvicorn answers to one request, piece by piece as it sends it. */
#ifndef GENERATION_H
#define GENERATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How an answer is wrong, at its token number `fault_at`: for trying whoever checks it. */
enum fault { FAULT_NONE, FAULT_LOSE, FAULT_DOUBLE, FAULT_SWAP, FAULT_ALTER, FAULT_CUT, FAULTS };
extern const char *const fault_names[FAULTS];

extern const char *model_name;

enum piece { PIECE_ROLE, PIECE_TOKEN, PIECE_USAGE, PIECE_DONE, PIECE_END, PIECE_NOTHING };
enum { PIECE_MOST = 2048 };

struct generation {
    bool stream, wants_usage;
    unsigned tokens, made; /* tokens that are wanted, and made so far */
    size_t prompt_tokens;
    enum piece next;
    uint64_t began_us;
    long created;
    char id[40];
    char frame[PIECE_MOST]; /* a token as it goes out, but for its text */
    size_t frame_length, frame_text;
};

/* Begin an answer to a body; false when it is no JSON object. */
bool generation_begin(struct generation *generation, const char *body, size_t length);

/* The head of a streamed answer. */
size_t generation_head(char *head, bool keep_alive);

/* Write the next piece of a streamed answer; its length, which may be 0. */
size_t generation_next(struct generation *generation, enum fault fault, unsigned fault_at, char *piece);

/* A whole answer that is not streamed, head and body, in memory that the caller frees. */
char *generation_whole(struct generation *generation, bool keep_alive, size_t *length);

/* Status, type and body of the answer to a GET. */
int other_body(const char *path, size_t length, unsigned long running, unsigned long made, char *body, size_t room,
               const char **type);

/* Head and body of any answer that is not streamed. */
size_t plain_answer(char *to, size_t room, int status, const char *type, const char *body, bool keep_alive);

#endif
