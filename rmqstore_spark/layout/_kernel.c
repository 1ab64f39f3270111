/* The loops of the decoder, compiled.
 *
 * Each function does what the function of the same name in plain.py does, over the same
 * arrays: that file is the reference, and the tests hold the two against each other.
 * Nothing here allocates: the caller hands in every output array, and each span is checked
 * against the buffer before it is touched, so no content of a file can reach past it.
 * The interpreter lock is released around every loop.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "_crc32.h"

#if PY_BIG_ENDIAN
#error "the kernel is written for little-endian machines; the plain decoder serves there"
#endif

#define HEAD_SIZE 56 /* up to bornHost, and never past a whole record */
#define MIN_RECORD 91

static inline uint32_t be32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return __builtin_bswap32(v);
}

static inline uint64_t be64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return __builtin_bswap64(v);
}

/* ---- arguments ------------------------------------------------------------------------ */

typedef struct {
    Py_buffer view[12];
    int used;
} Views;

static void release(Views *views)
{
    while (views->used > 0)
        PyBuffer_Release(&views->view[--views->used]);
}

static void *take(Views *views, PyObject *object, Py_ssize_t item, int writable, Py_ssize_t *count)
{
    Py_buffer *view = &views->view[views->used];
    int flags = writable ? PyBUF_WRITABLE : PyBUF_SIMPLE;
    if (PyObject_GetBuffer(object, view, flags) < 0)
        return NULL;
    views->used++;
    if (view->len % item) {
        PyErr_SetString(PyExc_ValueError, "array of another item size than expected");
        return NULL;
    }
    *count = view->len / item;
    return view->buf ? view->buf : (void *)"";
}

#define TAKE(name, type, object, writable)                                          \
    Py_ssize_t name##_n;                                                            \
    type *name = take(&views, object, sizeof(type), writable, &name##_n);           \
    if (name == NULL) {                                                             \
        release(&views);                                                            \
        return NULL;                                                                \
    }

#define REQUIRE(condition, text)                        \
    if (!(condition)) {                                 \
        release(&views);                                \
        PyErr_SetString(PyExc_ValueError, text);        \
        return NULL;                                    \
    }

static int inside(int64_t start, int64_t length, Py_ssize_t size)
{
    return start >= 0 && length >= 0 && length <= size && start <= size - length;
}

static int all_inside(const int64_t *starts, const int32_t *lengths, Py_ssize_t n, Py_ssize_t size)
{
    for (Py_ssize_t i = 0; i < n; i++)
        if (lengths[i] > 0 && !inside(starts[i], lengths[i], size))
            return 0;
    return 1;
}

/* As memcpy; most spans are short, and a call for each would cost more than their copying. */
static inline void copy(uint8_t *to, const uint8_t *from, size_t n)
{
    uint64_t a[2], b[2];
    uint32_t c, d;
    if (n > 32) {
        memcpy(to, from, n);
    } else if (n >= 16) {
        memcpy(a, from, 16);
        memcpy(b, from + n - 16, 16);
        memcpy(to, a, 16);
        memcpy(to + n - 16, b, 16);
    } else if (n >= 8) {
        memcpy(a, from, 8);
        memcpy(b, from + n - 8, 8);
        memcpy(to, a, 8);
        memcpy(to + n - 8, b, 8);
    } else if (n >= 4) {
        memcpy(&c, from, 4);
        memcpy(&d, from + n - 4, 4);
        memcpy(to, &c, 4);
        memcpy(to + n - 4, &d, 4);
    } else {
        while (n--)
            *to++ = *from++;
    }
}

/* Whether two spans hold the same bytes; likewise. */
static inline int equal(const uint8_t *p, const uint8_t *q, size_t n)
{
    uint64_t a[2], b[2];
    uint32_t c[2], d[2];
    if (n > 16)
        return memcmp(p, q, n) == 0;
    if (n >= 8) {
        memcpy(&a[0], p, 8);
        memcpy(&a[1], p + n - 8, 8);
        memcpy(&b[0], q, 8);
        memcpy(&b[1], q + n - 8, 8);
        return a[0] == b[0] && a[1] == b[1];
    }
    if (n >= 4) {
        memcpy(&c[0], p, 4);
        memcpy(&c[1], p + n - 4, 4);
        memcpy(&d[0], q, 4);
        memcpy(&d[1], q + n - 4, 4);
        return c[0] == d[0] && c[1] == d[1];
    }
    while (n > 0 && *p == *q)
        p++, q++, n--;
    return n == 0;
}

#define OUTSIDE "a span lies outside its buffer"
#define SMALL "an output array is too small"

/* ---- reading --------------------------------------------------------------------------- */

static PyObject *pread_spans(PyObject *self, PyObject *args)
{
    int fd;
    PyObject *o[3];
    if (!PyArg_ParseTuple(args, "iOOO", &fd, &o[0], &o[1], &o[2]))
        return NULL;
    Views views = {.used = 0};
    TAKE(offsets, const int64_t, o[0], 0)
    TAKE(lengths, const int32_t, o[1], 0)
    TAKE(out, uint8_t, o[2], 1)
    REQUIRE(lengths_n == offsets_n, "offsets and lengths differ in number")
    int64_t total = 0;
    for (Py_ssize_t i = 0; i < lengths_n; i++) {
        REQUIRE(lengths[i] >= 0, "a length is negative")
        total += lengths[i];
    }
    REQUIRE(total <= out_n, SMALL)
    Py_ssize_t done = 0;
    int error = 0;
    Py_BEGIN_ALLOW_THREADS
    for (; done < offsets_n; done++) {
        int64_t at = offsets[done], left = lengths[done];
        while (left > 0) {
            ssize_t got = pread(fd, out, (size_t)left, (off_t)at);
            if (got < 0 && errno == EINTR)
                continue;
            if (got < 0)
                error = errno;
            if (got <= 0)
                break;
            out += got;
            at += got;
            left -= got;
        }
        if (left > 0)
            break;
    }
    Py_END_ALLOW_THREADS
    release(&views);
    if (error) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return PyLong_FromSsize_t(done);
}

/* ---- records --------------------------------------------------------------------------- */

enum { STOP_FULL = 0, STOP_MORE = 1, STOP_BLANK = 2, STOP_BAD = 3 };

static PyObject *walk(PyObject *self, PyObject *args)
{
    PyObject *o[2];
    long long start, end, base;
    int lead;
    if (!PyArg_ParseTuple(args, "OLLLiO", &o[0], &start, &end, &base, &lead, &o[1]))
        return NULL;
    Views views = {.used = 0};
    TAKE(buffer, const uint8_t, o[0], 0)
    TAKE(positions, int64_t, o[1], 1)
    REQUIRE(start >= 0 && end <= buffer_n && start <= end && (lead == 0 || lead == 48), OUTSIDE)
    Py_ssize_t count = 0;
    int stop = STOP_FULL;
    int64_t at = start;
    Py_BEGIN_ALLOW_THREADS
    for (;;) {
        if (count >= positions_n)
            break;
        if (end - at < 8) {
            stop = STOP_MORE;
            break;
        }
        const uint8_t *p = buffer + at;
        int64_t unit = (int32_t)be32(p + (lead ? 4 : 0));
        uint32_t magic = be32(p + (lead ? 0 : 4));
        if (lead ? magic == 0xFFFFFFFFu : magic == 0xCBD43194u) {
            stop = STOP_BLANK;
            break;
        }
        int known = lead ? magic == 1 : (magic == 0xDAA320A7u || magic == 0xDAA320ABu);
        if (!known || unit < lead + MIN_RECORD) {
            stop = STOP_BAD;
            break;
        }
        if (end - at < unit) {
            stop = STOP_MORE;
            break;
        }
        const uint8_t *record = p + lead;
        uint32_t inner = be32(record + 4);
        if ((lead && (inner != 0xDAA320A7u && inner != 0xDAA320ABu)) ||
            (int64_t)be64(record + 28) != base + at + lead ||
            (int64_t)be32(record) != unit - lead) {
            stop = STOP_BAD;
            break;
        }
        positions[count++] = at + lead;
        at += unit;
    }
    Py_END_ALLOW_THREADS
    release(&views);
    return Py_BuildValue("niL", count, stop, (long long)at);
}

enum { LONGS = 5, INTS = 14 };
enum { OK = 0, SHORT = 1, MAGIC = 2, LENGTHS = 3, BODY_CRC = 4, RECORD_CRC = 5 };
enum { CHECK_BODY = 1, CHECK_RECORD = 2 };

static int32_t parse_one(const uint8_t *p, int64_t room, int64_t *longs, int32_t *ints, Py_ssize_t n)
{
    if (room < MIN_RECORD)
        return SHORT;
    int64_t total = (int32_t)be32(p);
    uint32_t magic = be32(p + 4);
    int32_t sys_flag = (int32_t)be32(p + 36);
    ints[0 * n] = (int32_t)total;
    ints[1 * n] = (int32_t)magic;
    ints[2 * n] = (int32_t)be32(p + 8);
    ints[3 * n] = (int32_t)be32(p + 12);
    ints[4 * n] = (int32_t)be32(p + 16);
    ints[5 * n] = sys_flag;
    longs[0 * n] = (int64_t)be64(p + 20);
    longs[1 * n] = (int64_t)be64(p + 28);
    longs[2 * n] = (int64_t)be64(p + 40);
    if (magic != 0xDAA320A7u && magic != 0xDAA320ABu)
        return MAGIC;
    if (total < MIN_RECORD || total > room)
        return SHORT;
    int64_t topic_width = magic == 0xDAA320ABu ? 2 : 1;
    int64_t at = 48 + ((sys_flag & 0x10) ? 20 : 8);
    int64_t tail = 8 + ((sys_flag & 0x20) ? 20 : 8) + 4 + 8 + 4;
    if (at + tail + topic_width + 2 > total)
        return LENGTHS;
    longs[3 * n] = (int64_t)be64(p + at);
    at += (sys_flag & 0x20) ? 28 : 16;
    ints[6 * n] = (int32_t)be32(p + at);
    longs[4 * n] = (int64_t)be64(p + at + 4);
    int64_t body = (int32_t)be32(p + at + 12);
    at += 16;
    if (body < 0 || body > total - at - topic_width - 2)
        return LENGTHS;
    ints[7 * n] = (int32_t)at;
    ints[8 * n] = (int32_t)body;
    at += body;
    int64_t topic = topic_width == 1 ? p[at] : (p[at] << 8 | p[at + 1]);
    at += topic_width;
    if (topic > (topic_width == 1 ? 127 : 32767) || topic > total - at - 2)
        return LENGTHS;
    ints[9 * n] = (int32_t)at;
    ints[10 * n] = (int32_t)topic;
    at += topic;
    int64_t properties = p[at] << 8 | p[at + 1];
    at += 2;
    if (properties > 32767 || properties != total - at)
        return LENGTHS;
    ints[11 * n] = (int32_t)at;
    ints[12 * n] = (int32_t)properties;
    return OK;
}

static PyObject *parse(PyObject *self, PyObject *args)
{
    PyObject *o[5];
    if (!PyArg_ParseTuple(args, "OOOOO", &o[0], &o[1], &o[2], &o[3], &o[4]))
        return NULL;
    Views views = {.used = 0};
    TAKE(buffer, const uint8_t, o[0], 0)
    TAKE(positions, const int64_t, o[1], 0)
    TAKE(rooms, const int32_t, o[2], 0)
    TAKE(longs, int64_t, o[3], 1)
    TAKE(ints, int32_t, o[4], 1)
    Py_ssize_t n = positions_n;
    REQUIRE(rooms_n == n && longs_n == LONGS * n && ints_n == INTS * n, SMALL)
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < n; i++) {
        int32_t status = SHORT;
        if (inside(positions[i], rooms[i], buffer_n))
            status = parse_one(buffer + positions[i], rooms[i], longs + i, ints + i, n);
        if (status != OK) {
            for (int f = 0; f < LONGS; f++)
                longs[f * n + i] = 0;
            for (int f = 0; f < INTS; f++)
                ints[f * n + i] = 0;
        }
        ints[13 * n + i] = status;
    }
    Py_END_ALLOW_THREADS
    release(&views);
    Py_RETURN_NONE;
}

#define TRAILER 20 /* "__CRC32#", 0x01, ten digits with the least first, 0x02 */

static int trailer_differs(const uint8_t *record, int32_t total, int32_t properties)
{
    const uint8_t *trailer = record + total - TRAILER;
    if (properties < TRAILER || memcmp(trailer, "__CRC32#\x01", 9) != 0)
        return 0;
    uint32_t found = crc32_of(record, (size_t)(total - TRAILER)) & 0x7FFFFFFFu;
    for (int i = 9; i < 19; i++, found /= 10)
        if (trailer[i] != '0' + found % 10)
            return 1;
    return 0;
}

static PyObject *absorb(PyObject *self, PyObject *args)
{
    PyObject *o[9];
    Py_ssize_t first, last, tail, rest_tail;
    int checks;
    if (!PyArg_ParseTuple(args, "OOOnniOnOnOOOO", &o[0], &o[1], &o[2], &first, &last, &checks,
                          &o[3], &tail, &o[4], &rest_tail, &o[5], &o[6], &o[7], &o[8]))
        return NULL;
    Views views = {.used = 0};
    TAKE(buffer, const uint8_t, o[0], 0)
    TAKE(positions, const int64_t, o[1], 0)
    TAKE(rooms, const int32_t, o[2], 0)
    TAKE(bodies, uint8_t, o[3], 1)
    TAKE(rest, uint8_t, o[4], 1)
    TAKE(body_at, int64_t, o[5], 1)
    TAKE(rest_at, int64_t, o[6], 1)
    TAKE(longs, int64_t, o[7], 1)
    TAKE(ints, int32_t, o[8], 1)
    Py_ssize_t n = positions_n;
    REQUIRE(rooms_n == n && body_at_n == n && rest_at_n == n, SMALL)
    REQUIRE(longs_n == LONGS * n && ints_n == INTS * n, SMALL)
    REQUIRE(0 <= first && first <= last && last <= n && tail >= 0 && rest_tail >= 0, OUTSIDE)
    int wanted = bodies_n > 0, full = 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = first; i < last; i++) {
        int32_t status = SHORT;
        const uint8_t *p = buffer;
        int64_t *l = longs + i;
        int32_t *v = ints + i;
        if (inside(positions[i], rooms[i], buffer_n)) {
            p += positions[i];
            status = parse_one(p, rooms[i], l, v, n);
        }
        if (status == OK && (checks & CHECK_RECORD) && trailer_differs(p, v[0], v[12 * n]))
            status = RECORD_CRC;
        if (status == OK && (checks & CHECK_BODY) &&
            (crc32_of(p + v[7 * n], (size_t)v[8 * n]) & 0x7FFFFFFFu) != (uint32_t)v[2 * n])
            status = BODY_CRC;
        body_at[i] = tail;
        rest_at[i] = rest_tail;
        if (status != OK) {
            for (int f = 0; f < LONGS; f++)
                l[f * n] = 0;
            for (int f = 0; f < INTS; f++)
                v[f * n] = 0;
            v[13 * n] = status;
            continue;
        }
        v[13 * n] = OK;
        int32_t head = v[7 * n], body = v[8 * n], behind = v[0] - head - body;
        if (rest_tail > rest_n - head - behind || (wanted && tail > bodies_n - body)) {
            full = 1;
            break;
        }
        memcpy(rest + rest_tail, p, (size_t)head);
        memcpy(rest + rest_tail + head, p + head + body, (size_t)behind);
        rest_tail += head + behind;
        v[9 * n] -= body;
        v[11 * n] -= body;
        if (wanted) {
            memmove(bodies + tail, p + head, (size_t)body);
            tail += body;
        }
    }
    Py_END_ALLOW_THREADS
    release(&views);
    if (full) {
        PyErr_SetString(PyExc_ValueError, SMALL);
        return NULL;
    }
    return Py_BuildValue("nn", tail, rest_tail);
}

/* ---- spans ------------------------------------------------------------------------------ */

static PyObject *gather(PyObject *self, PyObject *args)
{
    PyObject *o[5];
    if (!PyArg_ParseTuple(args, "OOOOO", &o[0], &o[1], &o[2], &o[3], &o[4]))
        return NULL;
    Views views = {.used = 0};
    TAKE(buffer, const uint8_t, o[0], 0)
    TAKE(starts, const int64_t, o[1], 0)
    TAKE(lengths, const int32_t, o[2], 0)
    TAKE(offsets, int32_t, o[3], 1)
    TAKE(data, uint8_t, o[4], 1)
    Py_ssize_t n = starts_n, i = 0;
    int64_t at = 0, room = data_n <= INT32_MAX ? data_n : INT32_MAX;
    REQUIRE(lengths_n == n && offsets_n == n + 1, SMALL)
    Py_BEGIN_ALLOW_THREADS
    for (; i < n; i++) {
        offsets[i] = (int32_t)at;
        if (lengths[i] <= 0)
            continue;
        if (!inside(starts[i], lengths[i], buffer_n) || lengths[i] > room - at)
            break;
        copy(data + at, buffer + starts[i], (size_t)lengths[i]);
        at += lengths[i];
    }
    offsets[n] = (int32_t)at;
    Py_END_ALLOW_THREADS
    REQUIRE(i == n || !inside(starts[i], lengths[i], buffer_n), SMALL)
    REQUIRE(i == n, OUTSIDE)
    release(&views);
    Py_RETURN_NONE;
}

static PyObject *crc32_spans(PyObject *self, PyObject *args)
{
    PyObject *o[4];
    if (!PyArg_ParseTuple(args, "OOOO", &o[0], &o[1], &o[2], &o[3]))
        return NULL;
    Views views = {.used = 0};
    TAKE(buffer, const uint8_t, o[0], 0)
    TAKE(starts, const int64_t, o[1], 0)
    TAKE(lengths, const int32_t, o[2], 0)
    TAKE(out, uint32_t, o[3], 1)
    REQUIRE(lengths_n == starts_n && out_n == starts_n, SMALL)
    REQUIRE(all_inside(starts, lengths, starts_n, buffer_n), OUTSIDE)
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < starts_n; i++)
        out[i] = lengths[i] > 0 ? crc32_of(buffer + starts[i], (size_t)lengths[i]) : 0;
    Py_END_ALLOW_THREADS
    release(&views);
    Py_RETURN_NONE;
}

static PyObject *spans_equal(PyObject *self, PyObject *args)
{
    PyObject *o[7];
    if (!PyArg_ParseTuple(args, "OOOOOOO", &o[0], &o[1], &o[2], &o[3], &o[4], &o[5], &o[6]))
        return NULL;
    Views views = {.used = 0};
    TAKE(buffer, const uint8_t, o[0], 0)
    TAKE(starts, const int64_t, o[1], 0)
    TAKE(lengths, const int32_t, o[2], 0)
    TAKE(other, const uint8_t, o[3], 0)
    TAKE(other_starts, const int64_t, o[4], 0)
    TAKE(other_lengths, const int32_t, o[5], 0)
    TAKE(out, uint8_t, o[6], 1)
    Py_ssize_t n = starts_n;
    REQUIRE(lengths_n == n && other_starts_n == n && other_lengths_n == n && out_n == n, SMALL)
    REQUIRE(all_inside(starts, lengths, n, buffer_n), OUTSIDE)
    REQUIRE(all_inside(other_starts, other_lengths, n, other_n), OUTSIDE)
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < n; i++)
        out[i] = lengths[i] == other_lengths[i] &&
                 (lengths[i] <= 0 ||
                  equal(buffer + starts[i], other + other_starts[i], (size_t)lengths[i]));
    Py_END_ALLOW_THREADS
    release(&views);
    Py_RETURN_NONE;
}

/* ---- hosts and message ids -------------------------------------------------------------- */

static inline uint8_t *put_decimal(uint8_t *out, uint32_t v)
{
    uint8_t digits[10];
    int n = 0;
    do {
        digits[n++] = (uint8_t)('0' + v % 10);
        v /= 10;
    } while (v);
    while (n)
        *out++ = digits[--n];
    return out;
}

/* Four bytes as eight hex digits: the nibbles are spread over eight bytes, and what makes a digit
 * or a letter of them is added to all at once. */
static inline uint8_t *put_hex(uint8_t *out, uint32_t word)
{
    uint64_t v = word;
    v = (v | v << 16) & 0x0000FFFF0000FFFFu;
    v = (v | v << 8) & 0x00FF00FF00FF00FFu;
    v = (v | v << 4) & 0x0F0F0F0F0F0F0F0Fu;
    uint64_t letters = ((v + 0x0606060606060606u) >> 4) & 0x0101010101010101u;
    v = __builtin_bswap64(v + 0x3030303030303030u + letters * ('A' - '0' - 10));
    memcpy(out, &v, 8);
    return out + 8;
}

static inline uint8_t *put_group(uint8_t *out, unsigned v)
{
    static const char HEX[] = "0123456789abcdef";
    int shift = 12;
    while (shift > 0 && (v >> shift) == 0)
        shift -= 4;
    for (; shift >= 0; shift -= 4)
        *out++ = (uint8_t)HEX[(v >> shift) & 15];
    return out;
}

static uint8_t *put_host(uint8_t *out, const uint8_t *p, int v6)
{
    if (v6) {
        *out++ = '[';
        for (int g = 0; g < 8; g++) {
            if (g)
                *out++ = ':';
            out = put_group(out, (unsigned)(p[2 * g] << 8 | p[2 * g + 1]));
        }
        *out++ = ']';
        p += 16;
    } else {
        for (int b = 0; b < 4; b++) {
            if (b)
                *out++ = '.';
            out = put_decimal(out, p[b]);
        }
        p += 4;
    }
    *out++ = ':';
    int32_t port = (int32_t)be32(p);
    if (port < 0)
        *out++ = '-';
    return put_decimal(out, port < 0 ? 0u - (uint32_t)port : (uint32_t)port);
}

#define HOST_ROOM 64 /* "[8 groups of 4]" + ":-2147483648", with room to spare */

static PyObject *format_hosts(PyObject *self, PyObject *args)
{
    PyObject *o[5];
    if (!PyArg_ParseTuple(args, "OOOOO", &o[0], &o[1], &o[2], &o[3], &o[4]))
        return NULL;
    Views views = {.used = 0};
    TAKE(buffer, const uint8_t, o[0], 0)
    TAKE(starts, const int64_t, o[1], 0)
    TAKE(v6, const uint8_t, o[2], 0)
    TAKE(offsets, int32_t, o[3], 1)
    TAKE(data, uint8_t, o[4], 1)
    Py_ssize_t n = starts_n;
    REQUIRE(v6_n == n && offsets_n == n + 1 && data_n >= n * HOST_ROOM && data_n <= INT32_MAX, SMALL)
    for (Py_ssize_t i = 0; i < n; i++)
        REQUIRE(inside(starts[i], v6[i] ? 20 : 8, buffer_n), OUTSIDE)
    Py_BEGIN_ALLOW_THREADS
    uint8_t *out = data, text[HOST_ROOM];
    size_t length = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        /* Neighbours mostly share their host: it is printed once. */
        if (i == 0 || v6[i] != v6[i - 1] ||
            !equal(buffer + starts[i], buffer + starts[i - 1], v6[i] ? 20 : 8))
            length = (size_t)(put_host(text, buffer + starts[i], v6[i]) - text);
        offsets[i] = (int32_t)(out - data);
        copy(out, text, length);
        out += length;
    }
    offsets[n] = (int32_t)(out - data);
    Py_END_ALLOW_THREADS
    release(&views);
    Py_RETURN_NONE;
}

static PyObject *format_msg_ids(PyObject *self, PyObject *args)
{
    PyObject *o[6];
    if (!PyArg_ParseTuple(args, "OOOOOO", &o[0], &o[1], &o[2], &o[3], &o[4], &o[5]))
        return NULL;
    Views views = {.used = 0};
    TAKE(buffer, const uint8_t, o[0], 0)
    TAKE(starts, const int64_t, o[1], 0)
    TAKE(v6, const uint8_t, o[2], 0)
    TAKE(physical, const int64_t, o[3], 0)
    TAKE(offsets, int32_t, o[4], 1)
    TAKE(data, uint8_t, o[5], 1)
    Py_ssize_t n = starts_n;
    REQUIRE(v6_n == n && physical_n == n && offsets_n == n + 1, SMALL)
    REQUIRE(data_n >= n * 56 && data_n <= INT32_MAX, SMALL)
    for (Py_ssize_t i = 0; i < n; i++)
        REQUIRE(inside(starts[i], v6[i] ? 20 : 8, buffer_n), OUTSIDE)
    Py_BEGIN_ALLOW_THREADS
    uint8_t *out = data;
    uint8_t host[40];
    for (Py_ssize_t i = 0; i < n; i++) {
        int words = v6[i] ? 5 : 2;
        if (i == 0 || v6[i] != v6[i - 1] ||
            !equal(buffer + starts[i], buffer + starts[i - 1], 4 * (size_t)words))
            for (int word = 0; word < words; word++)
                put_hex(host + 8 * word, be32(buffer + starts[i] + 4 * word));
        offsets[i] = (int32_t)(out - data);
        copy(out, host, 8 * (size_t)words);
        out += 8 * words;
        out = put_hex(out, (uint32_t)((uint64_t)physical[i] >> 32));
        out = put_hex(out, (uint32_t)physical[i]);
    }
    offsets[n] = (int32_t)(out - data);
    Py_END_ALLOW_THREADS
    release(&views);
    Py_RETURN_NONE;
}

/* ---- properties -------------------------------------------------------------------------- */

#define MOST_NAMES 8 /* that are looked for at once */

typedef struct {
    const uint8_t *name, *value;
    int32_t name_length, value_length;
} Piece;

static inline int same_name(const uint8_t *name, int32_t length, const Piece *piece)
{
    return length == piece->name_length && equal(name, piece->name, (size_t)length);
}

/* The first byte from p on, and before end, that is 2 (or also 1); end where there is none.
 * Up to limit bytes may be read, but do not count. */
static inline const uint8_t *separator(const uint8_t *p, const uint8_t *end, const uint8_t *limit,
                                       int or_one)
{
#if defined(__SSE2__)
    const __m128i one = _mm_set1_epi8(1), two = _mm_set1_epi8(2);
    for (; p < end && limit - p >= 16; p += 16) {
        __m128i block = _mm_loadu_si128((const __m128i *)p);
        __m128i hits = _mm_cmpeq_epi8(block, two);
        if (or_one)
            hits = _mm_or_si128(hits, _mm_cmpeq_epi8(block, one));
        int mask = _mm_movemask_epi8(hits);
        if (mask) {
            p += __builtin_ctz((unsigned)mask);
            return p < end ? p : end;
        }
    }
#else
    (void)limit;
#endif
    while (p < end && *p != 2 && !(or_one && *p == 1))
        p++;
    return p < end ? p : end;
}

/* The next piece that is a property, or 0 at the end. */
static inline int next_property(const uint8_t **at, const uint8_t *end, const uint8_t *limit,
                                Piece *piece)
{
    while (*at < end) {
        const uint8_t *from = *at, *mark = separator(from, end, limit, 1);
        const uint8_t *stop = separator(mark, end, limit, 0);
        *at = stop + 1;
        if (mark == stop || mark == from || mark + 1 == stop)
            continue;
        piece->name = from;
        piece->name_length = (int32_t)(mark - from);
        piece->value = mark + 1;
        piece->value_length = (int32_t)(stop - mark - 1);
        return 1;
    }
    return 0;
}

/* Names whose values are looked for, and where these go: row i of n of each of k arrays. */
typedef struct {
    Piece names[MOST_NAMES];
    Py_ssize_t k, n;
    int64_t *at;
    int32_t *length;
} Wanted;

static int take_names(PyObject *tuple, Wanted *wanted)
{
    wanted->k = PyTuple_GET_SIZE(tuple);
    for (Py_ssize_t j = 0; j < wanted->k; j++) {
        char *name;
        Py_ssize_t length;
        if (PyBytes_AsStringAndSize(PyTuple_GET_ITEM(tuple, j), &name, &length) < 0)
            return 0;
        wanted->names[j] = (Piece){.name = (const uint8_t *)name, .name_length = (int32_t)length};
    }
    return 1;
}

static inline void none_found(Wanted *wanted, Py_ssize_t i)
{
    for (Py_ssize_t j = 0; j < wanted->k; j++) {
        wanted->at[j * wanted->n + i] = 0;
        wanted->length[j * wanted->n + i] = -1;
    }
}

static inline void note_wanted(Wanted *wanted, Py_ssize_t i, const Piece *piece, const uint8_t *buffer)
{
    for (Py_ssize_t j = 0; j < wanted->k; j++)
        if (same_name(piece->name, piece->name_length, &wanted->names[j])) {
            wanted->at[j * wanted->n + i] = piece->value - buffer;
            wanted->length[j * wanted->n + i] = piece->value_length;
            return;
        }
}

/* A row's names while its duplicates are sought: compared one by one while they are few,
 * by a hash table past that, so that a row made of thousands of names takes milliseconds, not
 * seconds. */
#define FEW 24
#define SLOTS 32768 /* twice the pieces that 32,767 bytes can hold */

typedef struct {
    const uint8_t *buffer;
    int64_t *name_at;
    int32_t *name_length;
    Py_ssize_t first, count;
    int hashed;
    int32_t slots[SLOTS];
} Names;

static uint32_t name_hash(const uint8_t *p, int32_t n)
{
    uint32_t h = 2166136261u;
    while (n--)
        h = (h ^ *p++) * 16777619u;
    return (h ^ (h >> 15)) & (SLOTS - 1);
}

static int is_known(const Names *names, Py_ssize_t k, const Piece *piece)
{
    return same_name(names->buffer + names->name_at[k], names->name_length[k], piece);
}

static uint32_t slot_of(const Names *names, const Piece *piece)
{
    uint32_t slot = name_hash(piece->name, piece->name_length);
    while (names->slots[slot] >= 0 && !is_known(names, names->slots[slot] + names->first, piece))
        slot = (slot + 1) & (SLOTS - 1);
    return slot;
}

/* Where the piece's name stands already, or names->count where it is new. */
static Py_ssize_t place_of(Names *names, const Piece *piece)
{
    if (names->count - names->first < FEW) {
        Py_ssize_t k = names->first;
        while (k < names->count && !is_known(names, k, piece))
            k++;
        return k;
    }
    if (!names->hashed) {
        memset(names->slots, -1, sizeof names->slots);
        for (Py_ssize_t k = names->first; k < names->count; k++) {
            Piece known = {.name = names->buffer + names->name_at[k],
                           .name_length = names->name_length[k]};
            names->slots[slot_of(names, &known)] = (int32_t)(k - names->first);
        }
        names->hashed = 1;
    }
    uint32_t slot = slot_of(names, piece);
    if (names->slots[slot] < 0) {
        names->slots[slot] = (int32_t)(names->count - names->first);
        return names->count;
    }
    return names->slots[slot] + names->first;
}

static PyObject *properties(PyObject *self, PyObject *args)
{
    PyObject *o[10], *found_names;
    if (!PyArg_ParseTuple(args, "OOOOOOOOO!OO", &o[0], &o[1], &o[2], &o[3], &o[4], &o[5], &o[6],
                          &o[7], &PyTuple_Type, &found_names, &o[8], &o[9]))
        return NULL;
    Views views = {.used = 0};
    TAKE(buffer, const uint8_t, o[0], 0)
    TAKE(starts, const int64_t, o[1], 0)
    TAKE(lengths, const int32_t, o[2], 0)
    TAKE(rows, int32_t, o[3], 1)
    TAKE(name_at, int64_t, o[4], 1)
    TAKE(name_length, int32_t, o[5], 1)
    TAKE(value_at, int64_t, o[6], 1)
    TAKE(value_length, int32_t, o[7], 1)
    TAKE(found_at, int64_t, o[8], 1)
    TAKE(found_length, int32_t, o[9], 1)
    Py_ssize_t n = starts_n, k = PyTuple_GET_SIZE(found_names);
    REQUIRE(k <= MOST_NAMES && found_at_n == n * k && found_length_n == n * k, SMALL)
    REQUIRE(lengths_n == n && rows_n == n + 1, SMALL)
    REQUIRE(name_length_n == name_at_n && value_at_n == name_at_n && value_length_n == name_at_n, SMALL)
    REQUIRE(all_inside(starts, lengths, n, buffer_n), OUTSIDE)
    for (Py_ssize_t i = 0; i < n; i++)
        REQUIRE(lengths[i] <= 65535, "properties are longer than their length field can say")
    Wanted wanted = {.n = n, .at = found_at, .length = found_length};
    if (!take_names(found_names, &wanted)) {
        release(&views);
        return NULL;
    }
    Names names = {.buffer = buffer, .name_at = name_at, .name_length = name_length, .count = 0};
    int full = 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < n && !full; i++) {
        rows[i] = (int32_t)names.count;
        none_found(&wanted, i);
        if (lengths[i] <= 0)
            continue;
        names.first = names.count;
        names.hashed = 0;
        const uint8_t *at = buffer + starts[i], *end = at + lengths[i];
        Piece piece;
        while (next_property(&at, end, buffer + buffer_n, &piece)) {
            note_wanted(&wanted, i, &piece, buffer);
            if (names.count == name_at_n) {
                full = 1;
                break;
            }
            /* Of a name given twice the last value counts, in the place of the first. */
            Py_ssize_t k = place_of(&names, &piece);
            name_at[k] = piece.name - buffer;
            name_length[k] = piece.name_length;
            value_at[k] = piece.value - buffer;
            value_length[k] = piece.value_length;
            if (k == names.count)
                names.count++;
        }
    }
    rows[n] = (int32_t)names.count;
    Py_END_ALLOW_THREADS
    release(&views);
    if (full) {
        PyErr_SetString(PyExc_ValueError, SMALL);
        return NULL;
    }
    return PyLong_FromSsize_t(names.count);
}

static PyObject *find_properties(PyObject *self, PyObject *args)
{
    PyObject *o[5], *names;
    if (!PyArg_ParseTuple(args, "OOOO!OO", &o[0], &o[1], &o[2], &PyTuple_Type, &names, &o[3], &o[4]))
        return NULL;
    Views views = {.used = 0};
    TAKE(buffer, const uint8_t, o[0], 0)
    TAKE(starts, const int64_t, o[1], 0)
    TAKE(lengths, const int32_t, o[2], 0)
    TAKE(found_at, int64_t, o[3], 1)
    TAKE(found_length, int32_t, o[4], 1)
    Py_ssize_t n = starts_n, k = PyTuple_GET_SIZE(names);
    REQUIRE(lengths_n == n && k <= MOST_NAMES, SMALL)
    REQUIRE(found_at_n == n * k && found_length_n == n * k, SMALL)
    REQUIRE(all_inside(starts, lengths, n, buffer_n), OUTSIDE)
    Wanted wanted = {.n = n, .at = found_at, .length = found_length};
    if (!take_names(names, &wanted)) {
        release(&views);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < n; i++) {
        none_found(&wanted, i);
        if (lengths[i] <= 0)
            continue;
        const uint8_t *at = buffer + starts[i], *end = at + lengths[i];
        Piece piece;
        while (next_property(&at, end, buffer + buffer_n, &piece))
            note_wanted(&wanted, i, &piece, buffer);
    }
    Py_END_ALLOW_THREADS
    release(&views);
    Py_RETURN_NONE;
}

static PyObject *split_spaces(PyObject *self, PyObject *args)
{
    PyObject *o[6];
    if (!PyArg_ParseTuple(args, "OOOOOO", &o[0], &o[1], &o[2], &o[3], &o[4], &o[5]))
        return NULL;
    Views views = {.used = 0};
    TAKE(buffer, const uint8_t, o[0], 0)
    TAKE(starts, const int64_t, o[1], 0)
    TAKE(lengths, const int32_t, o[2], 0)
    TAKE(rows, int32_t, o[3], 1)
    TAKE(piece_at, int64_t, o[4], 1)
    TAKE(piece_length, int32_t, o[5], 1)
    Py_ssize_t n = starts_n;
    REQUIRE(lengths_n == n && rows_n == n + 1 && piece_length_n == piece_at_n, SMALL)
    REQUIRE(all_inside(starts, lengths, n, buffer_n), OUTSIDE)
    Py_ssize_t count = 0;
    int full = 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < n && !full; i++) {
        rows[i] = (int32_t)count;
        int64_t at = starts[i], end = lengths[i] > 0 ? at + lengths[i] : at;
        while (at < end) {
            if (buffer[at] == ' ') {
                at++;
                continue;
            }
            const uint8_t *space = memchr(buffer + at, ' ', (size_t)(end - at));
            int64_t stop = space ? space - buffer : end;
            if (count == piece_at_n) {
                full = 1;
                break;
            }
            piece_at[count] = at;
            piece_length[count++] = (int32_t)(stop - at);
            at = stop;
        }
    }
    rows[n] = (int32_t)count;
    Py_END_ALLOW_THREADS
    release(&views);
    if (full) {
        PyErr_SetString(PyExc_ValueError, SMALL);
        return NULL;
    }
    return PyLong_FromSsize_t(count);
}

/* ---- text --------------------------------------------------------------------------------- */

/* Length of the valid sequence at p (1..4); or, negated, of the longest start of one: what
 * becomes a single U+FFFD (the practice that Unicode recommends, and Python's and Java's). */
static int utf8_step(const uint8_t *p, const uint8_t *end)
{
    uint8_t c = p[0], low = 0x80, high = 0xBF;
    int more;
    if (c < 0x80)
        return 1;
    if (c >= 0xC2 && c <= 0xDF)
        more = 1;
    else if (c >= 0xE0 && c <= 0xEF) {
        more = 2;
        if (c == 0xE0)
            low = 0xA0;
        if (c == 0xED)
            high = 0x9F;
    } else if (c >= 0xF0 && c <= 0xF4) {
        more = 3;
        if (c == 0xF0)
            low = 0x90;
        if (c == 0xF4)
            high = 0x8F;
    } else
        return -1;
    for (int i = 1; i <= more; i++) {
        if (p + i >= end || p[i] < low || p[i] > high)
            return -i;
        low = 0x80;
        high = 0xBF;
    }
    return more + 1;
}

static PyObject *is_ascii(PyObject *self, PyObject *args)
{
    PyObject *o;
    if (!PyArg_ParseTuple(args, "O", &o))
        return NULL;
    Views views = {.used = 0};
    TAKE(data, const uint8_t, o, 0)
    uint8_t bits = 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < data_n; i++)
        bits |= data[i];
    Py_END_ALLOW_THREADS
    release(&views);
    return PyBool_FromLong(bits < 0x80);
}

static PyObject *repair_utf8(PyObject *self, PyObject *args)
{
    PyObject *o[4];
    if (!PyArg_ParseTuple(args, "OOOO", &o[0], &o[1], &o[2], &o[3]))
        return NULL;
    Views views = {.used = 0};
    TAKE(offsets, const int32_t, o[0], 0)
    TAKE(data, const uint8_t, o[1], 0)
    TAKE(new_offsets, int32_t, o[2], 1)
    TAKE(out, uint8_t, o[3], 1)
    REQUIRE(offsets_n >= 1 && new_offsets_n == offsets_n && out_n <= INT32_MAX, SMALL)
    for (Py_ssize_t i = 0; i + 1 < offsets_n; i++)
        REQUIRE(offsets[i] >= 0 && offsets[i] <= offsets[i + 1] && offsets[i + 1] <= data_n, OUTSIDE)
    Py_ssize_t at = 0;
    int full = 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i + 1 < offsets_n && !full; i++) {
        new_offsets[i] = (int32_t)at;
        const uint8_t *p = data + offsets[i], *end = data + offsets[i + 1];
        while (p < end) {
            int step = utf8_step(p, end);
            int width = step > 0 ? step : 3;
            if (at + width > out_n) {
                full = 1;
                break;
            }
            memcpy(out + at, step > 0 ? p : (const uint8_t *)"\xEF\xBF\xBD", (size_t)width);
            at += width;
            p += step > 0 ? step : -step;
        }
    }
    new_offsets[offsets_n - 1] = (int32_t)at;
    Py_END_ALLOW_THREADS
    release(&views);
    if (full) {
        PyErr_SetString(PyExc_ValueError, SMALL);
        return NULL;
    }
    return PyLong_FromSsize_t(at);
}

static PyMethodDef METHODS[] = {
    {"pread_spans", pread_spans, METH_VARARGS, "See plain.pread_spans."},
    {"walk", walk, METH_VARARGS, "See plain.walk."},
    {"parse", parse, METH_VARARGS, "See plain.parse."},
    {"absorb", absorb, METH_VARARGS, "See plain.absorb."},
    {"gather", gather, METH_VARARGS, "See plain.gather."},
    {"crc32_spans", crc32_spans, METH_VARARGS, "See plain.crc32_spans."},
    {"spans_equal", spans_equal, METH_VARARGS, "See plain.spans_equal."},
    {"format_hosts", format_hosts, METH_VARARGS, "See plain.format_hosts."},
    {"format_msg_ids", format_msg_ids, METH_VARARGS, "See plain.format_msg_ids."},
    {"properties", properties, METH_VARARGS, "See plain.properties."},
    {"find_properties", find_properties, METH_VARARGS, "See plain.find_properties."},
    {"split_spaces", split_spaces, METH_VARARGS, "See plain.split_spaces."},
    {"is_ascii", is_ascii, METH_VARARGS, "See plain.is_ascii."},
    {"repair_utf8", repair_utf8, METH_VARARGS, "See plain.repair_utf8."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_kernel", "Compiled loops of the record decoder.", -1, METHODS,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kernel(void)
{
    crc32_prepare();
    return PyModule_Create(&MODULE);
}
