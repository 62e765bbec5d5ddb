import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.RecordBatch;

/**
 * Writes batches with the Java client's own builder and prints inputs and bytes as JSON.
 *
 * <p>Run as `java -cp "DIRECTORY-OF-KAFKA-JARS/*" GoldenBatches.java > golden_batches.json`; written for Apache Kafka 4.3.1.
 * A record is [timestamp, key, value, [[header key, header value] …]]; bytes are hex, header keys are text.
 */
public class GoldenBatches {
    static final long NOW = 1_700_000_000_000L;
    static final Header[] NO_HEADERS = {};

    record Row(long timestamp, byte[] key, byte[] value, Header[] headers) {}

    record Producer(long id, int epoch, int baseSequence, boolean transactional) {}

    static final Producer NONE = new Producer(-1L, -1, -1, false);

    static final List<String> cases = new ArrayList<>();

    public static void main(String[] args) {
        golden("one record", NONE, List.of(row(NOW, "key", "value")));
        golden("smallest record", NONE, List.of(row(NOW, null, null)));
        golden("nulls and empty strings", NONE, List.of(
            row(NOW, null, "value"), row(NOW, "key", null), row(NOW, null, null),
            row(NOW, "", "value"), row(NOW, "key", ""), row(NOW, "", "")));
        golden("timestamps that go back and far ahead", NONE, List.of(
            row(NOW, "a", "first is the base"), row(NOW - 1, "b", "1 ms back"), row(NOW - 86_400_000L, "c", "a day back"),
            row(NOW + 63, "d", "one byte"), row(NOW + 64, "e", "two bytes"), row(0, "f", "the epoch"),
            row(Long.MAX_VALUE, "g", "the end of time")));
        golden("no timestamp", NONE, List.of(row(-1, "a", "1"), row(-1, "b", "2")));
        golden("headers", NONE, List.of(
            row(NOW, "a", "one", header("name", "value")),
            row(NOW, "b", "duplicates in order", header("same", "1"), header("other", "2"), header("same", "3")),
            row(NOW, "c", "none"),
            row(NOW, "d", "null and empty", header("null", null), header("empty", ""), header("", "no name")),
            row(NOW, "e", "UTF-8", header("schlüssel-键-\uD83D\uDD11", "wert-值-\uD83D\uDC8E")),
            row(NOW, null, null, header("alone", "x"))));
        golden("65 headers: a count of two bytes", NONE, List.of(
            new Row(NOW, null, utf8("v"), java.util.stream.IntStream.range(0, 65)
                .mapToObj(i -> header("h" + i, String.valueOf(i))).toArray(Header[]::new))));
        golden("lengths at the steps of a varint", NONE, List.of(
            row(NOW, "k".repeat(63), "v".repeat(64)), row(NOW, "k".repeat(64), "v".repeat(63)),
            row(NOW, "k", "v".repeat(8191)), row(NOW, "k", "v".repeat(8192))));
        golden("bytes that are not text", NONE, List.of(new Row(NOW, allBytes(), allBytes(), NO_HEADERS)));
        golden("idempotent", new Producer(4_294_967_296L, 3, 17, false), List.of(row(NOW, "a", "1"), row(NOW, "b", "2")));
        golden("sequence wraps from 2147483646 to 1", new Producer(7L, 0, 2_147_483_646, false),
            List.of(row(NOW, "a", "1"), row(NOW, "b", "2"), row(NOW, "c", "3"), row(NOW, "d", "4")));
        golden("transactional, last epoch", new Producer(Long.MAX_VALUE, 32767, 0, true), List.of(row(NOW, "a", "1")));
        List<Row> many = new ArrayList<>();
        for (int i = 0; i < 1000; i++)
            many.add(row(NOW + i % 150, i % 7 == 0 ? null : "k" + i, i % 11 == 0 ? null : "x".repeat(i % 20)));
        golden("1000 records", new Producer(99L, 1, 1000, false), many);
        System.out.println("[\n" + String.join(",\n", cases) + "\n]");
    }

    static void golden(String name, Producer producer, List<Row> rows) {
        MemoryRecordsBuilder builder = MemoryRecords.builder(ByteBuffer.allocate(1 << 20), RecordBatch.MAGIC_VALUE_V2,
            Compression.NONE, TimestampType.CREATE_TIME, 0L, RecordBatch.NO_TIMESTAMP, producer.id(), (short) producer.epoch(),
            producer.baseSequence(), producer.transactional(), false, RecordBatch.NO_PARTITION_LEADER_EPOCH);
        for (Row row : rows)
            builder.append(row.timestamp(), row.key(), row.value(), row.headers());
        ByteBuffer batch = builder.build().buffer();
        byte[] bytes = new byte[batch.remaining()];
        batch.get(bytes);
        cases.add("{\"name\": \"" + name + "\", \"producer_id\": " + producer.id() + ", \"producer_epoch\": " + producer.epoch()
            + ", \"base_sequence\": " + producer.baseSequence() + ", \"transactional\": " + producer.transactional()
            + ",\n \"records\": " + rows.stream().map(GoldenBatches::json).collect(Collectors.joining(", ", "[", "]"))
            + ",\n \"batch\": " + hex(bytes) + "}");
    }

    static Row row(long timestamp, String key, String value, Header... headers) {
        return new Row(timestamp, utf8(key), utf8(value), headers);
    }

    static Header header(String key, String value) {
        return new RecordHeader(key, utf8(value));
    }

    static byte[] utf8(String text) {
        return text == null ? null : text.getBytes(StandardCharsets.UTF_8);
    }

    static byte[] allBytes() {
        byte[] bytes = new byte[256];
        for (int i = 0; i < 256; i++)
            bytes[i] = (byte) i;
        return bytes;
    }

    static String json(Row row) {
        List<String> headers = new ArrayList<>();
        for (Header header : row.headers())
            headers.add("[" + quoted(header.key()) + ", " + hex(header.value()) + "]");
        return "[" + row.timestamp() + ", " + hex(row.key()) + ", " + hex(row.value()) + ", [" + String.join(", ", headers) + "]]";
    }

    /** As a JSON string in ASCII; the header keys above need no other escapes. */
    static String quoted(String text) {
        return text.chars().mapToObj(c -> c < 128 ? String.valueOf((char) c) : String.format("\\u%04x", c))
            .collect(Collectors.joining("", "\"", "\""));
    }

    static String hex(byte[] bytes) {
        return bytes == null ? "null" : "\"" + java.util.HexFormat.of().formatHex(bytes) + "\"";
    }
}
