/* Writes the answers to requests whose messages are stored: all of each frame. Part of kernel.c.
 *
 * Upstream: SendMessageResponseHeader, RemotingCommand.
 */
#ifndef RMQSTORE_ANSWERS_H
#define RMQSTORE_ANSWERS_H

static uint8_t *put_text(uint8_t *out, const char *text)
{
    size_t n = strlen(text);
    memcpy(out, text, n);
    return out + n;
}

static uint8_t *put_number(uint8_t *out, int64_t value)
{
    uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    const uint64_t billion = 1000000000;
    if (value < 0)
        *out++ = '-';
    if (left < billion)
        return put_decimal(out, (uint32_t)left);
    out = put_number(out, (int64_t)(left / billion));
    left %= billion;
    for (uint64_t digit = billion / 10; digit; digit /= 10)
        *out++ = (uint8_t)('0' + left / digit % 10);
    return out;
}

typedef struct {
    const uint8_t *host;
    Py_ssize_t host_size;
    int32_t opaque, version;
    const int64_t *physical; /* of each message */
    Py_ssize_t rows;
    int64_t queue_id, queue_offset;
} Answer;

static uint8_t *put_msg_ids(uint8_t *out, const Answer *a)
{
    for (Py_ssize_t row = 0; row < a->rows; row++) {
        if (row)
            *out++ = ',';
        for (Py_ssize_t at = 0; at < a->host_size; at += 4)
            out = put_hex(out, be32(a->host + at));
        out = put_hex(out, (uint32_t)((uint64_t)a->physical[row] >> 32));
        out = put_hex(out, (uint32_t)a->physical[row]);
    }
    return out;
}

static uint8_t *json_answer(uint8_t *out, const Answer *a)
{
    out = put_msg_ids(put_text(out, "{\"code\":0,\"extFields\":{\"msgId\":\""), a);
    out = put_number(put_text(out, "\",\"queueId\":\""), a->queue_id);
    out = put_number(put_text(out, "\",\"queueOffset\":\""), a->queue_offset);
    out = put_text(out, "\",\"MSG_REGION\":\"DefaultRegion\",\"TRACE_ON\":\"true\"},\"flag\":1,"
                        "\"language\":\"JAVA\",\"opaque\":");
    out = put_text(put_number(out, a->opaque), ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
    return put_text(put_number(out, a->version), "}");
}

/* Begin a field of a binary header: its name, and room for the size of its value. */
static uint8_t *begin_field(uint8_t *out, const char *name)
{
    size_t n = strlen(name);
    *out++ = (uint8_t)(n >> 8);
    *out++ = (uint8_t)n;
    return put_text(out, name) + 4;
}

static uint8_t *end_field(uint8_t *begin, uint8_t *end)
{
    put32(begin - 4, (int32_t)(end - begin));
    return end;
}

static uint8_t *binary_answer(uint8_t *out, const Answer *a)
{
    uint8_t *value;
    out[0] = out[1] = 0;
    out[2] = 0; /* JAVA */
    out[3] = (uint8_t)(a->version >> 8);
    out[4] = (uint8_t)a->version;
    put32(out + 5, a->opaque);
    put32(out + 9, 1);
    put32(out + BINARY_HEAD, 0);
    uint8_t *fields = out += BINARY_HEAD + 8;
    value = begin_field(out, "msgId");
    out = end_field(value, put_msg_ids(value, a));
    value = begin_field(out, "queueId");
    out = end_field(value, put_number(value, a->queue_id));
    value = begin_field(out, "queueOffset");
    out = end_field(value, put_number(value, a->queue_offset));
    value = begin_field(out, "MSG_REGION");
    out = end_field(value, put_text(value, "DefaultRegion"));
    value = begin_field(out, "TRACE_ON");
    out = end_field(value, put_text(value, "true"));
    put32(fields - 4, (int32_t)(out - fields));
    return out;
}

#define MOST_ANSWER 384
#define MSG_ID 57 /* with a comma */

/* Return the frame of an answer; its room is cut to its size. */
static PyObject *answer_frame(const Answer *answer, int is_binary)
{
    PyObject *frame = PyBytes_FromStringAndSize(NULL, MOST_ANSWER + answer->rows * MSG_ID);
    if (frame == NULL)
        return NULL;
    uint8_t *begin = (uint8_t *)PyBytes_AS_STRING(frame), *header = begin + FRAME_HEAD;
    uint8_t *end = is_binary ? binary_answer(header, answer) : json_answer(header, answer);
    put32(begin, (int32_t)(end - begin - 4));
    put32(begin + 4, (int32_t)(end - header) | (is_binary ? 1 << 24 : 0));
    _PyBytes_Resize(&frame, end - begin);
    return frame;
}

static PyObject *write_answer(PyObject *self, PyObject *args)
{
    const char *host;
    Py_ssize_t host_n;
    int version, opaque, form, queue_id;
    long long queue_offset, place;
    if (!PyArg_ParseTuple(args, "iy#iiiLL", &version, &host, &host_n, &opaque, &form, &queue_id,
                          &queue_offset, &place))
        return NULL;
    if (host_n != 8 && host_n != 20) {
        PyErr_SetString(PyExc_ValueError, "a host has 8 or 20 bytes");
        return NULL;
    }
    int64_t physical = place;
    Answer answer = {.host = (const uint8_t *)host, .host_size = host_n, .opaque = opaque,
                     .version = version, .physical = &physical, .rows = 1, .queue_id = queue_id,
                     .queue_offset = queue_offset};
    return answer_frame(&answer, form);
}

static PyObject *write_answers(PyObject *self, PyObject *args)
{
    PyObject *o[4];
    int version;
    if (!PyArg_ParseTuple(args, "iOOOO", &version, &o[0], &o[1], &o[2], &o[3]))
        return NULL;
    Views views = {.used = 0};
    TAKE(host, const uint8_t, o[0], 0)
    TAKE(requests, const int32_t, o[1], 0)
    TAKE(queue_offsets, const int64_t, o[2], 0)
    TAKE(physical, const int64_t, o[3], 0)
    Py_ssize_t n = requests_n / ASKED_INTS, row = 0;
    REQUIRE((host_n == 8 || host_n == 20) && requests_n == ASKED_INTS * n &&
                queue_offsets_n == physical_n,
            "the arrays differ in number")
    PyObject *frames = PyList_New(0);
    int is_whole = frames != NULL;
    for (Py_ssize_t i = 0; is_whole && i < n; i++) {
        const int32_t *request = requests + ASKED_INTS * i;
        int32_t rows = request[ASKED_ROWS];
        if (request[ASKED_SIZE] <= 0)
            continue;
        if (rows <= 0 || rows > physical_n - row) {
            row = -1;
            break;
        }
        Answer answer = {.host = host, .host_size = host_n, .opaque = request[ASKED_OPAQUE],
                         .version = version, .physical = physical + row, .rows = rows,
                         .queue_id = request[ASKED_QUEUE], .queue_offset = queue_offsets[row]};
        PyObject *frame = answer_frame(&answer, request[ASKED_FORM]);
        is_whole = frame && PyList_Append(frames, frame) == 0;
        Py_XDECREF(frame);
        row += rows;
    }
    if (is_whole && row != physical_n) {
        PyErr_SetString(PyExc_ValueError, "the arrays differ in number");
        is_whole = 0;
    }
    release(&views);
    if (!is_whole)
        Py_CLEAR(frames);
    return frames;
}

#endif
