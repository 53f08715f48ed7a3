/* What the load is asked to do, and the requests that follow from it. */
#ifndef REQUEST_H
#define REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/uio.h>

struct want {
    long port, clients, requests, tokens, stream, usage, prompt, ramp_ms, rate, seconds, fresh, leave_after, leave_ms,
        hold, timeout;
    const char *keys, *model;
};

extern struct want want;

/* Take an option of the command line; false when there is none of that name. */
bool understood(const char *name, const char *value);

/* Write what all requests have in common. */
void prepare_requests(void);

/* The rest of request `number` of which that much was sent: its parts, and how many; 0 when nothing is left. */
enum { REQUEST_PARTS = 5 };
int request_rest(unsigned long number, size_t sent, struct iovec *rest);

#endif
