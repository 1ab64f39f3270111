/* Hashes that tell contents apart. Part of kernel.c. */
#ifndef RMQSTORE_DIGEST_H
#define RMQSTORE_DIGEST_H

#define GOLDEN 0x9E3779B97F4A7C15u

static inline uint64_t finalized(uint64_t x) /* the finalizer of SplitMix64 */
{
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* Return the last 1 to 7 bytes of a span, padded with zeros. */
static inline uint64_t last_word(const uint8_t *p, size_t n)
{
    uint32_t low, high;
    if (n < 4)
        return p[0] | (uint64_t)p[n >> 1] << 8 * (n >> 1) | (uint64_t)p[n - 1] << 8 * (n - 1);
    memcpy(&low, p, 4);
    memcpy(&high, p + n - 4, 4);
    return low | (uint64_t)high << 8 * (n - 4);
}

/* Hash n bytes: each word of eight with its place, the last one padded with zeros. */
static inline uint64_t content_hash(const uint8_t *p, size_t n)
{
    uint64_t sum = n, place = 0, word;
    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&word, p, 8);
        sum += finalized(word + (place += GOLDEN));
    }
    if (n)
        sum += finalized(last_word(p, n) + place + GOLDEN);
    return finalized(sum);
}

/* Add up the hashes of properties, in any order. UNIQ_KEY is another one in each attempt. */
static inline uint64_t hash_of_properties(const uint8_t *at, const uint8_t *end, const uint8_t *limit)
{
    uint64_t sum = 0;
    while (at < end) {
        const uint8_t *stop = separator(at, end, limit, 0);
        if (stop > at && !(stop - at >= 9 && memcmp(at, "UNIQ_KEY\1", 9) == 0))
            sum += content_hash(at, (size_t)(stop - at));
        at = stop + 1;
    }
    return sum;
}

static PyObject *content_hashes(PyObject *self, PyObject *args)
{
    PyObject *o[4];
    if (!PyArg_ParseTuple(args, "OOOO", &o[0], &o[1], &o[2], &o[3]))
        return NULL;
    Views views = {.used = 0};
    TAKE(buffer, const uint8_t, o[0], 0)
    TAKE(starts, const int64_t, o[1], 0)
    TAKE(lengths, const int32_t, o[2], 0)
    TAKE(out, uint64_t, o[3], 1)
    Py_ssize_t n = starts_n;
    REQUIRE(lengths_n == n && out_n == n, SMALL)
    REQUIRE(all_inside(starts, lengths, n, buffer_n), OUTSIDE)
    BEGIN_LOOP(n, SOME_ROWS)
    for (Py_ssize_t i = 0; i < n; i++)
        out[i] = lengths[i] > 0 ? content_hash(buffer + starts[i], (size_t)lengths[i]) : 0;
    END_LOOP
    release(&views);
    Py_RETURN_NONE;
}

#endif
