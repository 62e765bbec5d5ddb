import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A transactional producer that does what its standard input says, a line at a time, and answers each line: with "done", or with
 * the exception's name.
 *
 * <p>Run as `java -cp "DIRECTORY-OF-KAFKA-JARS/*" TransactionalProducer.java SERVERS TRANSACTIONAL-ID TOPIC`; written for Apache
 * Kafka 4.3.1. Lines: init, begin, send VALUE (which waits for the acknowledgement), commit, abort. The end of the input ends it.
 */
public class TransactionalProducer {
    public static void main(String[] arguments) throws Exception {
        Map<String, Object> options = Map.of("bootstrap.servers", arguments[0], "transactional.id", arguments[1]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        KafkaProducer<String, String> producer = new KafkaProducer<>(options, new StringSerializer(), new StringSerializer());
        System.out.println("ready");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ", 2);
            try {
                switch (words[0]) {
                    case "init" -> producer.initTransactions();
                    case "begin" -> producer.beginTransaction();
                    case "send" -> producer.send(new ProducerRecord<>(arguments[2], words[1])).get();
                    case "commit" -> producer.commitTransaction();
                    case "abort" -> producer.abortTransaction();
                    default -> throw new IllegalArgumentException(line);
                }
                System.out.println("done");
            } catch (Exception error) {
                System.out.println(error.getClass().getSimpleName());
            }
        }
        producer.close(java.time.Duration.ZERO);
    }
}
