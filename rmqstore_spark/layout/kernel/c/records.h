/* Reads spans of a file, and the fixed fields of records. Part of kernel.c. */
#ifndef RMQSTORE_RECORDS_H
#define RMQSTORE_RECORDS_H

static inline ssize_t read_at(int fd, void *out, size_t count, off_t at, int flags)
{
#if defined(__linux__)
    if (flags) {
        struct iovec whole = {.iov_base = out, .iov_len = count};
        return preadv2(fd, &whole, 1, at, flags);
    }
#endif
    return pread(fd, out, count, at);
}

static inline int waits(int flags)
{
#if defined(RWF_NOWAIT)
    return !(flags & RWF_NOWAIT);
#else
    return 1;
#endif
}

static PyObject *pread_spans(PyObject *self, PyObject *args)
{
    int fd, flags = 0;
    PyObject *o[3];
    if (!PyArg_ParseTuple(args, "iOOO|i", &fd, &o[0], &o[1], &o[2], &flags))
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
    /* What does not wait is over soon: threads do not take turns for it. */
    PyThreadState *thread = waits(flags) ? PyEval_SaveThread() : NULL;
    while (done < offsets_n) {
        /* Spans that follow one another in the file are one read. */
        int64_t at = offsets[done], size = lengths[done], left;
        Py_ssize_t next = done + 1;
        for (; next < offsets_n && offsets[next] == at + size; next++)
            size += lengths[next];
        for (left = size; left > 0;) {
            ssize_t got = read_at(fd, out, (size_t)left, (off_t)(at + size - left), flags);
            if (got < 0 && errno == EINTR)
                continue;
            if (got < 0)
                error = errno;
            if (got <= 0)
                break;
            out += got;
            left -= got;
        }
        for (int64_t whole = size - left; done < next && lengths[done] <= whole; done++)
            whole -= lengths[done];
        if (left > 0)
            break;
    }
    if (thread != NULL)
        PyEval_RestoreThread(thread);
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

#define TRAILER 20 /* "__CRC32#", 0x01, ten digits, least significant first, 0x02 */

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

static PyObject *as_claimed(PyObject *self, PyObject *args)
{
    PyObject *o[12];
    if (!PyArg_ParseTuple(args, "OOOOOOOOOOOO", &o[0], &o[1], &o[2], &o[3], &o[4], &o[5], &o[6],
                          &o[7], &o[8], &o[9], &o[10], &o[11]))
        return NULL;
    Views views = {.used = 0};
    TAKE(buffer, const uint8_t, o[0], 0)
    TAKE(positions, const int64_t, o[1], 0)
    TAKE(longs, const int64_t, o[2], 0)
    TAKE(ints, const int32_t, o[3], 0)
    TAKE(offsets, const int64_t, o[4], 0)
    TAKE(sizes, const int32_t, o[5], 0)
    TAKE(slots, const int64_t, o[6], 0)
    TAKE(queue, const int32_t, o[7], 0)
    TAKE(topics, const uint8_t, o[8], 0)
    TAKE(topic_starts, const int64_t, o[9], 0)
    TAKE(topic_lengths, const int32_t, o[10], 0)
    TAKE(queue_ids, const int32_t, o[11], 0)
    Py_ssize_t n = positions_n, k = queue_ids_n, i = 0;
    REQUIRE(longs_n == LONGS * n && ints_n == INTS * n && offsets_n == n && sizes_n == n, SMALL)
    REQUIRE(slots_n == n && queue_n == n && topic_starts_n == k && topic_lengths_n == k, SMALL)
    REQUIRE(all_inside(topic_starts, topic_lengths, k, topics_n), OUTSIDE)
    int outside = 0;
    Py_BEGIN_ALLOW_THREADS
    for (; i < n; i++) {
        int32_t q = queue[i], length = ints[10 * n + i];
        int64_t at = positions[i] + ints[9 * n + i];
        outside = q < 0 || q >= k || (length > 0 && !inside(at, length, buffer_n));
        if (outside || ints[13 * n + i] != OK || longs[n + i] != offsets[i] ||
            ints[i] != sizes[i] || longs[i] != slots[i] || ints[3 * n + i] != queue_ids[q] ||
            length != topic_lengths[q] ||
            (length > 0 && !equal(buffer + at, topics + topic_starts[q], (size_t)length)))
            break;
    }
    Py_END_ALLOW_THREADS
    REQUIRE(!outside, OUTSIDE)
    release(&views);
    return PyBool_FromLong(i == n);
}

#endif
