import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Seconds that transactions of one record each take, after as many to warm up: CommitRate warm-up transactions topic key=value … */
public class CommitRate {
    public static void main(String[] arguments) {
        Properties options = new Properties();
        for (int i = 3; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=", 2);
            options.put(pair[0], pair[1]);
        }
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(options, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            commit(producer, arguments[2], Integer.parseInt(arguments[0]));
            long started = System.nanoTime();
            commit(producer, arguments[2], Integer.parseInt(arguments[1]));
            System.out.println((System.nanoTime() - started) / 1e9);
        } catch (ApiException error) {  // has no stack trace, which Java's launcher of source files does not expect
            throw new IllegalStateException(error);
        }
    }

    static void commit(KafkaProducer<byte[], byte[]> producer, String topic, int transactions) {
        for (int i = 0; i < transactions; i++) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "x".getBytes()));
            producer.commitTransaction();
        }
    }
}
