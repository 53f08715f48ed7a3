/* Orders of the engine: one line of standard input each, answered by a line of JSON.
 *
 *   set NAME=VALUE ...    first_us (request to first token), gap_us (token to token), in_step (all streams at once),
 *                         fault (its name), fault_at (the token it befalls)
 *   reset                 counters to zero, but for those of the metrics page
 *   stats                 what was counted
 */
#define _GNU_SOURCE
#include "engine.h"

#include "generation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pace pace;
struct seen seen;

static int by_size(const void *one, const void *other)
{
    unsigned long left = *(const unsigned long *)one, right = *(const unsigned long *)other;
    return left < right ? -1 : left > right;
}

static void print_stats(void)
{
    unsigned long middle = 0, most = 0;
    if (seen.left > 0) {
        qsort(seen.tokens_of_left, seen.left, sizeof *seen.tokens_of_left, by_size);
        middle = seen.tokens_of_left[seen.left / 2];
        most = seen.tokens_of_left[seen.left - 1];
    }
    printf("{\"requests\": %lu, \"completed\": %lu, \"left\": %lu, \"tokens\": %lu, \"bad\": %lu, \"active\": %lu, "
           "\"most_active\": %lu, \"connections\": %lu, \"left_tokens_p50\": %lu, \"left_tokens_max\": %lu, "
           "\"longest_left_us\": %llu}\n",
           seen.requests, seen.completed, seen.left, seen.tokens, seen.bad, seen.active, seen.most_active,
           seen.connections, middle, most, (unsigned long long)seen.longest_left_us);
}

static void reset(void)
{
    unsigned long active = seen.active, earlier = seen.earlier_tokens + seen.tokens;
    free(seen.tokens_of_left);
    memset(&seen, 0, sizeof seen);
    seen.active = seen.most_active = active;
    seen.earlier_tokens = earlier;
}

static long fault_named(const char *name)
{
    for (long fault = 0; fault < FAULTS; fault++)
        if (strcmp(fault_names[fault], name) == 0)
            return fault;
    return -1;
}

static bool set(char *words)
{
    static const struct {
        const char *name;
        long *value;
    } names[] = {{"first_us", &pace.first_us},
                 {"gap_us", &pace.gap_us},
                 {"in_step", &pace.in_step},
                 {"fault", &pace.fault},
                 {"fault_at", &pace.fault_at}};
    char *rest = NULL;
    for (char *word = strtok_r(words, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        long *known = NULL;
        for (size_t at = 0; value != NULL && at < sizeof names / sizeof *names; at++)
            if (strncmp(names[at].name, word, (size_t)(value - word)) == 0 && names[at].name[value - word] == 0)
                known = names[at].value;
        if (known == NULL)
            return false;
        *known = known == &pace.fault ? fault_named(value + 1) : strtol(value + 1, NULL, 10);
        if (*known < 0)
            return false;
    }
    return true;
}

bool obey(void)
{
    char line[1024];
    if (fgets(line, sizeof line, stdin) == NULL)
        return false;
    line[strcspn(line, "\n")] = 0;
    if (strncmp(line, "set ", 4) == 0) {
        printf("%s\n", set(line + 4) ? "{}" : "{\"error\": \"no such setting or value\"}");
    } else if (strcmp(line, "reset") == 0) {
        reset();
        printf("{}\n");
    } else if (strcmp(line, "stats") == 0) {
        print_stats();
    } else {
        printf("{\"error\": \"no such order\"}\n");
    }
    fflush(stdout);
    return true;
}
