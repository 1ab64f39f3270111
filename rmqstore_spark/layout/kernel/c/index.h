/* Links keys into an IndexFile's chains. Part of kernel.c. */
#ifndef RMQSTORE_INDEX_H
#define RMQSTORE_INDEX_H

#define INDEX_ENTRY 20 /* keyHash 4, phyOffset 8, timeDiff 4, previous 4 */
#define AHEAD 64       /* slots to prefetch: each access is a cache miss */

static int32_t seconds_since(int64_t begin, int64_t time)
{
    if (begin <= 0 || time <= begin)
        return 0;
    int64_t seconds = (time - begin) / 1000;
    return seconds > INT32_MAX ? INT32_MAX : (int32_t)seconds;
}

static PyObject *link_keys(PyObject *self, PyObject *args)
{
    PyObject *o[5];
    long long start, begin;
    if (!PyArg_ParseTuple(args, "OLOOOLO", &o[0], &start, &o[1], &o[2], &o[3], &begin, &o[4]))
        return NULL;
    Views views = {.used = 0};
    TAKE(slots, uint32_t, o[0], 1)
    TAKE(key_hash, const int32_t, o[1], 0)
    TAKE(phy_offset, const int64_t, o[2], 0)
    TAKE(store_timestamp, const int64_t, o[3], 0)
    TAKE(entries, uint8_t, o[4], 1)
    Py_ssize_t n = key_hash_n;
    REQUIRE(phy_offset_n == n && store_timestamp_n == n, "the arrays differ in number")
    REQUIRE(entries_n % INDEX_ENTRY == 0 && entries_n / INDEX_ENTRY == n,
            "the arrays differ in number")
    REQUIRE(slots_n > 0 && slots_n <= INT32_MAX && n <= INT32_MAX && start >= 1 &&
                start <= INT32_MAX - n,
            "there are no slots, or no such numbers")
    int32_t fresh = 0, count = (int32_t)slots_n, number = (int32_t)start;
    BEGIN_LOOP(n, SOME_ROWS)
    uint8_t *slot[AHEAD];
    for (Py_ssize_t first = 0; first < n; first += AHEAD) {
        Py_ssize_t some = n - first < AHEAD ? n - first : AHEAD;
        for (Py_ssize_t i = 0; i < some; i++) {
            int32_t at = key_hash[first + i] % count;
            slot[i] = (uint8_t *)(slots + (at < 0 ? at + count : at));
            __builtin_prefetch(slot[i], 1);
        }
        for (Py_ssize_t i = first; i < first + some; i++, number++) {
            int32_t previous = (int32_t)be32(slot[i - first]);
            /* A slot that leads past the newest entry is left over from a crash: unused. */
            if (previous < 0 || previous >= number)
                previous = 0;
            fresh += previous == 0;
            put32(slot[i - first], number);
            uint8_t *p = entries + INDEX_ENTRY * i;
            put32(p, key_hash[i]);
            put64(p + 4, phy_offset[i]);
            put32(p + 12, seconds_since(begin, store_timestamp[i]));
            put32(p + 16, previous);
            /* The first key is measured from the previous file, and sets the begin. */
            if (number == 1)
                begin = store_timestamp[i];
        }
    }
    END_LOOP
    release(&views);
    return PyLong_FromLong(fresh);
}

#endif
