/* The compiled loops of the decoder, and those over blocks to be stored.
 *
 * Each function does the same as the function of that name in reference/plain.py, over the same
 * arrays. The tests compare the two.
 * Nothing here allocates but a topic's name, to look it up, the answers to requests, and what a
 * member of a group writes: the caller passes in every output array. Each span is checked against
 * its buffer before it is accessed, so no content of a file or a frame can reach past the buffer.
 * The interpreter lock is released around every loop that is long enough for it.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "crc32.h"

#if PY_BIG_ENDIAN
#error "the kernel is written for little-endian machines; the plain decoder serves there"
#endif

#define HEAD_SIZE 56 /* up to bornHost; every record is longer */
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

static inline void put64(uint8_t *p, int64_t v)
{
    uint64_t raw = __builtin_bswap64((uint64_t)v);
    memcpy(p, &raw, 8);
}

static inline void put32(uint8_t *p, int32_t v)
{
    uint32_t raw = __builtin_bswap32((uint32_t)v);
    memcpy(p, &raw, 4);
}

#include "arguments.h"
#include "records.h"
#include "spans.h"
#include "hosts.h"
#include "properties.h"
#include "entries.h"
#include "text.h"
#include "hash.h"
#include "digest.h"
#include "block.h"
#include "dispatch.h"
#include "index.h"
#include "encode.h"
#include "batch.h"
#include "requests.h"
#include "sends.h"
#include "answers.h"
#include "members.h"

static PyMethodDef METHODS[] = {
    {"pread_spans", pread_spans, METH_VARARGS, "See plain.pread_spans."},
    {"walk", walk, METH_VARARGS, "See plain.walk."},
    {"parse", parse, METH_VARARGS, "See plain.parse."},
    {"absorb", absorb, METH_VARARGS, "See plain.absorb."},
    {"as_claimed", as_claimed, METH_VARARGS, "See plain.as_claimed."},
    {"gather", gather, METH_VARARGS, "See plain.gather."},
    {"crc32_spans", crc32_spans, METH_VARARGS, "See plain.crc32_spans."},
    {"spans_equal", spans_equal, METH_VARARGS, "See plain.spans_equal."},
    {"format_hosts", format_hosts, METH_VARARGS, "See plain.format_hosts."},
    {"format_msg_ids", format_msg_ids, METH_VARARGS, "See plain.format_msg_ids."},
    {"properties", properties, METH_VARARGS, "See plain.properties."},
    {"find_properties", find_properties, METH_VARARGS, "See plain.find_properties."},
    {"split_spaces", split_spaces, METH_VARARGS, "See plain.split_spaces."},
    {"split_entries", split_entries, METH_VARARGS, "See plain.split_entries."},
    {"pick_entries", pick_entries, METH_VARARGS, "See plain.pick_entries."},
    {"split_batch", split_batch, METH_VARARGS, "See plain.split_batch."},
    {"is_ascii", is_ascii, METH_VARARGS, "See plain.is_ascii."},
    {"repair_utf8", repair_utf8, METH_VARARGS, "See plain.repair_utf8."},
    {"hash_texts", hash_texts, METH_VARARGS, "See plain.hash_texts."},
    {"check_block", check_block, METH_VARARGS, "See plain.check_block."},
    {"check_single", check_single, METH_VARARGS, "See plain.check_single."},
    {"number_rows", number_rows, METH_VARARGS, "See plain.number_rows."},
    {"stamp_record", stamp_record, METH_VARARGS, "See plain.stamp_record."},
    {"stamp_records", stamp_records, METH_VARARGS, "See plain.stamp_records."},
    {"queue_entries", queue_entries, METH_VARARGS, "See plain.queue_entries."},
    {"index_hashes", index_hashes, METH_VARARGS, "See plain.index_hashes."},
    {"content_hashes", content_hashes, METH_VARARGS, "See plain.content_hashes."},
    {"link_keys", link_keys, METH_VARARGS, "See plain.link_keys."},
    {"join_texts", join_texts, METH_VARARGS, "See plain.join_texts."},
    {"write_records", write_records, METH_VARARGS, "See plain.write_records."},
    {"plain_sends", plain_sends, METH_VARARGS, "See plain.plain_sends."},
    {"write_send", write_send, METH_VARARGS, "See plain.write_send."},
    {"write_sends", write_sends, METH_VARARGS, "See plain.write_sends."},
    {"write_answer", write_answer, METH_VARARGS, "See plain.write_answer."},
    {"write_answers", write_answers, METH_VARARGS, "See plain.write_answers."},
    {"sound_records", sound_records, METH_VARARGS, "See plain.sound_records."},
    {"write_entries", write_entries, METH_VARARGS, "See plain.write_entries."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_kernel", "Compiled loops of the record decoder.", -1, METHODS,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kernel(void)
{
    crc32_prepare();
    if (!choose_secret())
        return NULL;
    return PyModule_Create(&MODULE);
}
