import java.io.IOException;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.StringJoiner;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;

/**
 * Reads a file of batches with the Java client and prints what is in it; a checksum, codec or record that is wrong ends it.
 *
 * <p>Run as `java -cp "DIRECTORY-OF-KAFKA-JARS/*" ReadBatches.java FILE`; written for Apache Kafka 4.3.1. One line for each
 * batch, one for each record: fields between spaces, bytes as hex after "=", "-" for null; headers as key=value.
 */
public class ReadBatches {
    public static void main(String[] args) throws IOException {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        ByteBuffer file = ByteBuffer.wrap(Files.readAllBytes(Path.of(args[0])));
        for (RecordBatch batch : MemoryRecords.readableRecords(file).batches()) {
            batch.ensureValid();
            out.println("batch " + batch.compressionType().name + " " + batch.countOrNull() + " " + batch.maxTimestamp() + " "
                + batch.producerId() + " " + batch.producerEpoch() + " " + batch.baseSequence() + " " + batch.lastSequence() + " "
                + batch.isTransactional());
            for (Record record : batch) {
                record.ensureValid();
                out.println(line(record));
            }
        }
        if (MemoryRecords.readableRecords(file).validBytes() != file.capacity())
            throw new IllegalStateException("bytes are left over");
        out.flush();
    }

    static String line(Record record) {
        StringJoiner fields = new StringJoiner(" ");
        fields.add(record.offset() + "").add(record.timestamp() + "").add(hex(record.key())).add(hex(record.value()));
        for (Header header : record.headers())
            fields.add(hex(ByteBuffer.wrap(header.key().getBytes(StandardCharsets.UTF_8)))
                + (header.value() == null ? "-" : hex(ByteBuffer.wrap(header.value()))));
        return fields.toString();
    }

    static String hex(ByteBuffer bytes) {
        if (bytes == null)
            return "-";
        byte[] copy = new byte[bytes.remaining()];
        bytes.duplicate().get(copy);
        return "=" + HexFormat.of().formatHex(copy);
    }
}
