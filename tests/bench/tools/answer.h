/* An answer as a client reads it, in pieces split anywhere: framing, events, and whether every token is right. */
#ifndef ANSWER_H
#define ANSWER_H

#include "common.h"
#include "histogram.h"

/* What was found in all answers. */
struct tally {
    unsigned long tokens;
    unsigned long missing, doubled, reordered, wrong; /* tokens */
    unsigned long unended, unasked;                   /* streams without [DONE]; events that nobody asked for */
    struct histogram first_us, transit_us;            /* to the first token; from the engine's send() of a token */
};

enum phase { PHASE_HEAD, PHASE_SIZE, PHASE_EXTENSION, PHASE_DATA, PHASE_DATA_END, PHASE_TRAILER, PHASE_PLAIN };
enum progress { MORE, COMPLETE, BROKEN };

struct answer {
    /* what is expected */
    unsigned tokens_wanted;
    bool streamed, usage_asked;
    uint64_t begun_us;
    /* what has come */
    enum phase phase;
    bool any, keep_alive, done;
    int status;
    unsigned tokens, next; /* different ones so far; the one that is due */
    uint64_t left;         /* bytes of the chunk or of the whole body */
    bool digits, counted;  /* of a chunk's size; whether the body has a length */
    struct buffer text;    /* a head, line or body that is not complete yet */
    unsigned char *seen;   /* a bit for each token */
};

/* Expect an answer to a request that was sent at that moment. */
void answer_expect(struct answer *answer, unsigned tokens, bool streamed, bool usage_asked, uint64_t begun_us);

/* Read on. After COMPLETE nothing may follow; a body without a length ends with the connection, see `answer_eof`. */
enum progress answer_read(struct answer *answer, struct tally *tally, const char *data, size_t length, uint64_t now_us);
enum progress answer_eof(const struct answer *answer);

/* Judge an answer with status 200 at its end, whatever ended it; whether it was right and whole. */
bool answer_judge(struct answer *answer, struct tally *tally);

#endif
