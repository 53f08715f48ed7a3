/* What the engine is told, and what it has counted. */
#ifndef ENGINE_H
#define ENGINE_H

#include <stdbool.h>
#include <stdint.h>

struct pace {
    long first_us, gap_us, in_step, fault, fault_at;
};

struct seen {
    unsigned long requests, completed, left, tokens, bad, active, most_active, connections;
    unsigned long earlier_tokens;  /* before the counters were set to zero: an engine's metrics never go back */
    unsigned long *tokens_of_left; /* for each client that left, the tokens made for it */
    uint64_t longest_left_us;      /* from a request to the moment at which its client was seen to have left */
};

extern struct pace pace;
extern struct seen seen;

/* Read one order from standard input and answer it; false at the end of the input. */
bool obey(void);

#endif
