/* A fake engine: answers chat requests as vLLM does on the wire, at a pace of its own, and counts what clients do.
 *
 *   engine --ports N      listens on N ports of 127.0.0.1 and prints {"ports": [...]}
 *
 * Orders come on standard input (orders.c); the end of the input is the end.
 *
 * A client that closes before its answer is complete has left: counted with the tokens made for it until then. The
 * engine makes tokens at its pace whether they are read or not.
 */
#define _GNU_SOURCE
#include "engine.h"

#include "common.h"
#include "generation.h"
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
#include <unistd.h>

enum { BACKLOG = 4096, HEAD_MOST = 64 << 10, BODY_MOST = 64 << 20, READ = 64 << 10, TICK_US = 250, EVENTS = 1024 };

struct connection {
    int fd;
    bool listens, answering, keep_alive, closing;
    uint32_t events;
    struct buffer in, out;
    struct generation generation;
    struct timer timer;
    struct connection *next_closed;
};

static int poll_fd;
static struct connection *closed; /* freed after the events of one turn: one of them may still name it */

/* --- connections ------------------------------------------------------------------------------------------------- */

static void watch(struct connection *connection, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = connection};
    int order = connection->events == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    if (connection->events != events && epoll_ctl(poll_fd, order, connection->fd, &event) != 0)
        die("epoll_ctl");
    connection->events = events;
}

static struct connection *connection_of(int fd, bool listens)
{
    struct connection *connection = grown(NULL, sizeof *connection);
    memset(connection, 0, sizeof *connection);
    connection->fd = fd;
    connection->listens = listens;
    connection->timer.owner = connection;
    watch(connection, listens ? EPOLLIN : EPOLLIN | EPOLLRDHUP);
    return connection;
}

static void count_left(const struct generation *generation)
{
    uint64_t lived = now_us() - generation->began_us;
    seen.tokens_of_left = grown(seen.tokens_of_left, (seen.left + 1) * sizeof *seen.tokens_of_left);
    seen.tokens_of_left[seen.left++] = generation->made;
    if (lived > seen.longest_left_us)
        seen.longest_left_us = lived;
}

static void close_connection(struct connection *connection)
{
    if (connection->fd < 0)
        return;
    if (connection->answering) {
        seen.active--;
        count_left(&connection->generation);
    }
    timer_clear(&connection->timer);
    close(connection->fd);
    connection->fd = -1;
    connection->next_closed = closed;
    closed = connection;
}

static void free_closed(void)
{
    while (closed != NULL) {
        struct connection *next = closed->next_closed;
        buffer_free(&closed->in);
        buffer_free(&closed->out);
        free(closed);
        closed = next;
    }
}

static void flush(struct connection *connection)
{
    struct buffer *out = &connection->out;
    while (connection->fd >= 0 && out->length > 0) {
        ssize_t sent = send(connection->fd, out->data + out->start, out->length, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0)
            buffer_take(out, (size_t)sent);
        else if (errno == EAGAIN)
            break;
        else if (errno != EINTR)
            close_connection(connection);
    }
    if (connection->fd < 0)
        return;
    if (out->length == 0 && connection->closing)
        close_connection(connection);
    else
        watch(connection, out->length > 0 ? EPOLLIN | EPOLLRDHUP | EPOLLOUT : EPOLLIN | EPOLLRDHUP);
}

static void send_bytes(struct connection *connection, const char *data, size_t length)
{
    memcpy(buffer_room(&connection->out, length), data, length);
    connection->out.length += length;
    flush(connection);
}

/* --- answers ----------------------------------------------------------------------------------------------------- */

static void serve_requests(struct connection *connection);

static void answer_begins(struct connection *connection)
{
    connection->answering = true;
    seen.requests++;
    if (++seen.active > seen.most_active)
        seen.most_active = seen.active;
}

static void answer_ends(struct connection *connection)
{
    connection->answering = false;
    connection->closing = !connection->keep_alive;
    seen.active--;
    seen.completed++;
}

/* When something is due: engines take steps, and the wake-ups of streams that are nearly due together are one. */
static uint64_t on_the_beat(uint64_t due_us)
{
    uint64_t beat = pace.in_step && pace.gap_us > 0 ? (uint64_t)pace.gap_us : TICK_US;
    return (due_us + beat - 1) / beat * beat;
}

static void cut(struct connection *connection)
{
    struct linger at_once = {1, 0};
    setsockopt(connection->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    connection->answering = false;
    seen.active--;
    close_connection(connection);
}

/* Send what one step of the engine gives: a token and all that goes with it, of a gapless engine everything. */
static void step(struct connection *connection)
{
    struct generation *generation = &connection->generation;
    char piece[2 * PIECE_MOST];
    while (connection->fd >= 0 && generation->next != PIECE_NOTHING) {
        bool token = generation->next == PIECE_TOKEN;
        size_t length = generation_next(generation, (enum fault)pace.fault, (unsigned)pace.fault_at, piece);
        seen.tokens += token;
        if (generation->next == PIECE_NOTHING)
            answer_ends(connection);
        if (length > 0)
            send_bytes(connection, piece, length);
        if (token && pace.fault == FAULT_CUT && generation->made == (unsigned)pace.fault_at && connection->fd >= 0)
            cut(connection);
        if (token && pace.gap_us > 0 && generation->next == PIECE_TOKEN && connection->fd >= 0) {
            timer_set(&connection->timer, on_the_beat(connection->timer.due_us + (uint64_t)pace.gap_us));
            return;
        }
    }
}

static void answer_whole(struct connection *connection)
{
    size_t length;
    char *answer = generation_whole(&connection->generation, connection->keep_alive, &length);
    seen.tokens += connection->generation.tokens;
    answer_ends(connection);
    send_bytes(connection, answer, length);
    free(answer);
}

static void due(struct connection *connection)
{
    if (connection->generation.stream)
        step(connection);
    else
        answer_whole(connection);
    if (connection->fd >= 0 && !connection->answering)
        serve_requests(connection);
}

static void answer_plainly(struct connection *connection, int status, const char *type, const char *body)
{
    char answer[4096];
    connection->closing = !connection->keep_alive;
    send_bytes(connection, answer, plain_answer(answer, sizeof answer, status, type, body, connection->keep_alive));
}

static void chat(struct connection *connection, const char *body, size_t length)
{
    struct generation *generation = &connection->generation;
    if (!generation_begin(generation, body, length)) {
        seen.bad++;
        answer_plainly(connection, 400, "application/json", "{\"error\":{\"message\":\"invalid JSON\",\"code\":400}}");
        return;
    }
    answer_begins(connection);
    uint64_t wait = (uint64_t)pace.first_us;
    if (generation->stream) {
        char head[512];
        send_bytes(connection, head, generation_head(head, connection->keep_alive));
    } else {
        wait += (uint64_t)pace.gap_us * (generation->tokens - 1);
    }
    if (connection->fd < 0)
        return;
    connection->timer.due_us = generation->began_us;
    if (wait > 0)
        timer_set(&connection->timer, on_the_beat(generation->began_us + wait));
    else if (generation->stream)
        step(connection);
    else
        answer_whole(connection);
}

static void other(struct connection *connection, const char *path, size_t length)
{
    char body[2048];
    const char *type = "application/json";
    int status = other_body(path, length, seen.active, seen.earlier_tokens + seen.tokens, body, sizeof body, &type);
    answer_plainly(connection, status, type, body);
}

/* --- requests ---------------------------------------------------------------------------------------------------- */

static void refuse(struct connection *connection)
{
    seen.bad++;
    connection->keep_alive = false;
    answer_plainly(connection, 400, "text/plain", "Invalid HTTP request received.");
}

/* Answer the whole requests that have come, one after the other. */
static void serve_requests(struct connection *connection)
{
    struct buffer *in = &connection->in;
    while (connection->fd >= 0 && !connection->answering && !connection->closing && in->length > 0) {
        const char *head = in->data + in->start, *end = find(head, in->length, "\r\n\r\n");
        if (end == NULL) {
            if (in->length > HEAD_MOST)
                refuse(connection);
            return;
        }
        size_t head_length = (size_t)(end - head) + 4, size;
        const char *length = head_field(head, head_length, "content-length", &size);
        unsigned long body_length = length != NULL ? strtoul(length, NULL, 10) : 0;
        connection->keep_alive = !head_says(head, head_length, "connection", "close");
        if (body_length > BODY_MOST || head_field(head, head_length, "transfer-encoding", &size) != NULL) {
            refuse(connection);
            return;
        }
        if (in->length < head_length + body_length)
            return;
        static const char CHAT[] = "POST /v1/chat/completions ";
        const char *path = memchr(head, ' ', head_length), *after = NULL;
        if (path != NULL)
            after = memchr(path + 1, ' ', head_length - (size_t)(path + 1 - head));
        if (strncmp(head, CHAT, sizeof CHAT - 1) == 0)
            chat(connection, head + head_length, body_length);
        else if (after != NULL)
            other(connection, path + 1, (size_t)(after - path - 1));
        else
            refuse(connection);
        if (connection->fd >= 0)
            buffer_take(in, head_length + body_length);
    }
}

static void receive(struct connection *connection)
{
    for (;;) {
        char *room = buffer_room(&connection->in, READ);
        ssize_t got = recv(connection->fd, room, READ, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            break;
        if (got <= 0) {
            close_connection(connection);
            return;
        }
        connection->in.length += (size_t)got;
        if (got < READ)
            break;
    }
    serve_requests(connection);
}

static void accept_all(int listener)
{
    int on = 1, fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        connection_of(fd, false);
        seen.connections++;
    }
}

/* --- the process ------------------------------------------------------------------------------------------------- */

static void listen_on(int ports)
{
    printf("{\"ports\": [");
    for (int number = 0; number < ports; number++) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t size = sizeof address;
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0 || bind(fd, (struct sockaddr *)&address, size) != 0 || listen(fd, BACKLOG) != 0 ||
            getsockname(fd, (struct sockaddr *)&address, &size) != 0)
            die("listen");
        connection_of(fd, true);
        printf("%s%d", number > 0 ? ", " : "", ntohs(address.sin_port));
    }
    printf("]}\n");
    fflush(stdout);
}

static void happened(struct connection *connection, uint32_t events)
{
    if (connection->listens) {
        accept_all(connection->fd);
        return;
    }
    if (connection->fd >= 0 && (events & (EPOLLERR | EPOLLHUP)))
        close_connection(connection);
    if (connection->fd >= 0 && (events & EPOLLOUT))
        flush(connection);
    if (connection->fd >= 0 && (events & EPOLLIN))
        receive(connection);
    if (connection->fd >= 0 && (events & EPOLLRDHUP))
        close_connection(connection);
}

int main(int count, char **words)
{
    int ports = count == 3 && strcmp(words[1], "--ports") == 0 ? atoi(words[2]) : 0;
    if (ports < 1) {
        fprintf(stderr, "usage: engine --ports N\n");
        return 2;
    }
    allow_many_files();
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdin, NULL, _IONBF, 0); /* else a line could wait in the library where epoll does not see it */
    poll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event input = {.events = EPOLLIN, .data.ptr = NULL};
    if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, STDIN_FILENO, &input) != 0)
        die("standard input");
    listen_on(ports);
    for (;;) {
        static struct epoll_event events[EVENTS];
        struct timer *next = timer_next();
        uint64_t now = now_us(), wait = next != NULL && next->due_us > now ? next->due_us - now : 0;
        struct timespec limit = {(time_t)(wait / 1000000), (long)(wait % 1000000) * 1000};
        int happenings = epoll_pwait2(poll_fd, events, EVENTS, next != NULL ? &limit : NULL, NULL);
        if (happenings < 0 && errno != EINTR)
            die("epoll_pwait2");
        for (int at = 0; at < happenings; at++) {
            if (events[at].data.ptr != NULL)
                happened(events[at].data.ptr, events[at].events);
            else if (!obey())
                return 0;
        }
        for (now = now_us(); (next = timer_next()) != NULL && next->due_us <= now;) {
            timer_clear(next);
            due(next->owner);
        }
        free_closed();
    }
}
