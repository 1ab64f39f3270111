/* Formats hosts and message ids. Part of kernel.c. */
#ifndef RMQSTORE_HOSTS_H
#define RMQSTORE_HOSTS_H

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

/* Write four bytes as eight hex digits: spread the nibbles over eight bytes, then add the offset
 * to '0' or 'A' to all of them at once. */
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
        /* Neighbouring records mostly share their host: format it once. */
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

#endif
