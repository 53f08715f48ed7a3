/* Clients of a gateway: they send chat requests, check every token of every answer, and time what they see.
 *
 *   load --port N [--OPTION VALUE ...]     prints one JSON object
 *
 * Closed loop: `clients` at once, each with a request after the other until `requests` were sent. Open loop: with
 * `rate`, as many requests a second for `seconds`, each timed from the moment at which it should have been sent.
 */
#define _GNU_SOURCE
#include "answer.h"
#include "common.h"
#include "request.h"
#include "timers.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { EVENTS = 1024, READ = 64 << 10 };

enum state { IDLE, CONNECTING, SENDING, READING };

struct client {
    int fd;
    enum state state;
    uint32_t events;
    uint64_t begun_us;
    size_t sent;
    unsigned long number; /* of its request */
    bool reused, retried;
    struct answer answer;
    struct timer timer;
    struct client *next_idle;
};

static struct {
    unsigned long requests, right, refused, unconnected, reset, late, misframed, left, retried, connections;
    unsigned long statuses[600];
} seen;

static struct tally tally;
static struct client *clients, *idle;
static long running;   /* requests that were begun and have not ended */
static long planned;   /* clients with a moment at which they begin */
static long scheduled; /* requests of an open loop whose moment has come */
static uint64_t began_us;
static int poll_fd;

/* --- connections and requests ------------------------------------------------------------------------------------ */

static void finished(struct client *client);
static void send_request(struct client *client);
static void fail(struct client *client, unsigned long *counter);

static void watch(struct client *client, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = client};
    int order = client->events == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    if (client->events != events && epoll_ctl(poll_fd, order, client->fd, &event) != 0)
        die("epoll_ctl");
    client->events = events;
}

static void hang_up(struct client *client)
{
    if (client->fd >= 0)
        close(client->fd);
    client->fd = -1;
    client->events = 0;
}

static void connect_client(struct client *client)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)want.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1;
    client->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (client->fd < 0)
        die("socket");
    setsockopt(client->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    client->state = CONNECTING;
    client->reused = false;
    seen.connections++;
    if (connect(client->fd, (struct sockaddr *)&address, sizeof address) != 0 && errno != EINPROGRESS) {
        seen.unconnected++;
        finished(client);
    } else {
        watch(client, EPOLLOUT);
    }
}

static void try(struct client *client)
{
    answer_expect(&client->answer, (unsigned)want.tokens, want.stream, want.usage, client->begun_us);
    client->sent = 0;
    client->reused = client->fd >= 0;
    if (client->reused)
        send_request(client);
    else
        connect_client(client);
}

static void begin(struct client *client, uint64_t begun_us)
{
    uint64_t limit = want.leave_ms > 0 ? (uint64_t)want.leave_ms * 1000 : (uint64_t)want.timeout * 1000000;
    client->begun_us = begun_us;
    client->retried = false;
    client->number = ++seen.requests;
    running++;
    timer_set(&client->timer, now_us() + limit);
    try(client);
}

static void send_request(struct client *client)
{
    struct iovec rest[REQUEST_PARTS];
    struct msghdr message = {.msg_iov = rest};
    client->state = SENDING;
    while ((message.msg_iovlen = request_rest(client->number, client->sent, rest)) > 0) {
        ssize_t sent = sendmsg(client->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0) {
            client->sent += (size_t)sent;
        } else if (errno == EAGAIN) {
            watch(client, EPOLLIN | EPOLLOUT);
            return;
        } else if (errno != EINTR) {
            fail(client, &seen.reset);
            return;
        }
    }
    client->state = READING;
    watch(client, EPOLLIN);
}

/* --- ends -------------------------------------------------------------------------------------------------------- */

/* The client is free for the next request. */
static void finished(struct client *client)
{
    timer_clear(&client->timer);
    if (want.fresh || !client->answer.keep_alive || client->state == CONNECTING)
        hang_up(client);
    client->state = IDLE;
    running--;
    if (want.rate == 0 && (long)seen.requests + planned < want.requests) {
        planned++;
        timer_set(&client->timer, now_us());
    } else {
        client->next_idle = idle;
        idle = client;
    }
}

static void fail(struct client *client, unsigned long *counter)
{
    /* A connection that was kept alive may end in the moment in which a request is sent: once more on a new one. */
    bool stale = client->reused && !client->retried && !client->answer.any && counter == &seen.reset;
    hang_up(client);
    if (stale) {
        client->retried = true;
        seen.retried++;
        try(client);
        return;
    }
    ++*counter;
    if (client->answer.status == 200)
        answer_judge(&client->answer, &tally);
    finished(client);
}

static void complete(struct client *client)
{
    int status = client->answer.status;
    seen.statuses[status >= 0 && status < 600 ? status : 0]++;
    if (status != 200)
        seen.refused++;
    else if (answer_judge(&client->answer, &tally))
        seen.right++;
    finished(client);
}

static void leave(struct client *client)
{
    seen.left++;
    hang_up(client);
    finished(client);
}

static void receive(struct client *client)
{
    static char data[READ];
    for (;;) {
        ssize_t got = recv(client->fd, data, READ, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return;
        if (client->state == IDLE) { /* the other side ends a connection that is kept alive */
            seen.misframed += got > 0;
            hang_up(client);
            return;
        }
        enum progress progress = got > 0 ? answer_read(&client->answer, &tally, data, (size_t)got, now_us())
                                         : answer_eof(&client->answer);
        if (progress == COMPLETE)
            complete(client);
        else if (progress == BROKEN)
            fail(client, got > 0 ? &seen.misframed : &seen.reset);
        else if (want.leave_after > 0 && client->answer.tokens >= (unsigned long)want.leave_after)
            leave(client);
        else if (got == READ)
            continue;
        return;
    }
}

static void happened(struct client *client, uint32_t events)
{
    if (client->fd < 0)
        return;
    if (client->state == CONNECTING) {
        int error = 0;
        socklen_t size = sizeof error;
        getsockopt(client->fd, SOL_SOCKET, SO_ERROR, &error, &size);
        if (error != 0)
            fail(client, &seen.unconnected);
        else
            send_request(client);
        return;
    }
    if ((events & EPOLLOUT) && client->state == SENDING)
        send_request(client);
    if (client->fd >= 0 && (events & (EPOLLIN | EPOLLERR | EPOLLHUP)))
        receive(client);
}

static void due(struct client *client)
{
    if (client->state == IDLE) {
        planned--;
        begin(client, now_us());
    } else if (want.leave_ms > 0) {
        leave(client);
    } else {
        fail(client, &seen.late);
    }
}

/* --- the run ----------------------------------------------------------------------------------------------------- */

static uint64_t moment_of(long number)
{
    return began_us + (uint64_t)number * 1000000 / (uint64_t)want.rate;
}

static void begin_scheduled(void)
{
    while (scheduled < want.rate * want.seconds && idle != NULL && moment_of(scheduled) <= now_us()) {
        struct client *client = idle;
        idle = client->next_idle;
        begin(client, moment_of(scheduled++));
    }
}

/* Microseconds until something is due, -1 for never. */
static int64_t wait_us(void)
{
    struct timer *next = timer_next();
    uint64_t now = now_us(), at = next != NULL ? next->due_us : UINT64_MAX;
    if (want.rate > 0 && scheduled < want.rate * want.seconds && idle != NULL && moment_of(scheduled) < at)
        at = moment_of(scheduled);
    return at == UINT64_MAX ? -1 : at > now ? (int64_t)(at - now) : 0;
}

static void turn(void)
{
    static struct epoll_event events[EVENTS];
    int64_t wait = wait_us();
    struct timespec limit = {wait / 1000000, wait % 1000000 * 1000};
    int happenings = epoll_pwait2(poll_fd, events, EVENTS, wait >= 0 ? &limit : NULL, NULL);
    if (happenings < 0 && errno != EINTR)
        die("epoll_pwait2");
    for (int at = 0; at < happenings; at++)
        happened(events[at].data.ptr, events[at].events);
    struct timer *next;
    for (uint64_t now = now_us(); (next = timer_next()) != NULL && next->due_us <= now;) {
        timer_clear(next);
        due(next->owner);
    }
    begin_scheduled();
}

static void run(void)
{
    bool open = want.rate > 0;
    clients = grown(NULL, (size_t)want.clients * sizeof *clients);
    memset(clients, 0, (size_t)want.clients * sizeof *clients);
    began_us = now_us();
    for (long number = want.clients - 1; number >= 0; number--) {
        struct client *client = &clients[number];
        client->fd = -1;
        client->timer.owner = client;
        if (open) {
            client->next_idle = idle;
            idle = client;
        } else if (number < want.requests) {
            planned++;
            timer_set(&client->timer, began_us + (uint64_t)(want.ramp_ms * 1000 * number / want.clients));
        }
    }
    while (open ? scheduled < want.rate * want.seconds || running > 0 : timer_next() != NULL)
        turn();
}

static void report(void)
{
    printf("{\"requests\": %lu, \"right\": %lu, \"refused\": %lu, \"unconnected\": %lu, \"reset\": %lu, \"late\": %lu, "
           "\"misframed\": %lu, \"left\": %lu, \"retried\": %lu, \"connections\": %lu, \"statuses\": {",
           seen.requests, seen.right, seen.refused, seen.unconnected, seen.reset, seen.late, seen.misframed, seen.left,
           seen.retried, seen.connections);
    const char *comma = "";
    for (int status = 0; status < 600; status++) {
        if (seen.statuses[status] > 0) {
            printf("%s\"%d\": %lu", comma, status, seen.statuses[status]);
            comma = ", ";
        }
    }
    printf("}, \"tokens\": %lu, \"missing\": %lu, \"doubled\": %lu, \"reordered\": %lu, \"wrong\": %lu, "
           "\"unended\": %lu, \"unasked\": %lu, \"wall_us\": %llu, ",
           tally.tokens, tally.missing, tally.doubled, tally.reordered, tally.wrong, tally.unended, tally.unasked,
           (unsigned long long)(now_us() - began_us));
    histogram_print("first_us", &tally.first_us);
    printf(", ");
    histogram_print("transit_us", &tally.transit_us);
    printf("}\n");
    fflush(stdout);
}

int main(int count, char **words)
{
    for (int at = 1; at < count; at += 2) {
        if (at + 1 == count || !understood(words[at], words[at + 1])) {
            fprintf(stderr, "load: %s is no option, or has no value\n", words[at]);
            return 2;
        }
    }
    if (want.port < 1 || want.clients < 1 || want.tokens < 1) {
        fprintf(stderr, "usage: load --port N [--OPTION VALUE ...]\n");
        return 2;
    }
    allow_many_files();
    signal(SIGPIPE, SIG_IGN);
    poll_fd = epoll_create1(EPOLL_CLOEXEC);
    prepare_requests();
    run();
    report();
    while (want.hold && getchar() != EOF)
        continue;
    return 0;
}
