import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Seconds to the first acknowledgement of one new Java producer after another, as JSON: FirstAck producers topic key=value … */
public class FirstAck {
    public static void main(String[] arguments) throws Exception {
        Properties options = new Properties();
        for (int i = 2; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=", 2);
            options.put(pair[0], pair[1]);
        }
        List<Double> seconds = new ArrayList<>();
        for (int i = 0; i < Integer.parseInt(arguments[0]); i++) {
            try (KafkaProducer<byte[], byte[]> producer =
                    new KafkaProducer<>(options, new ByteArraySerializer(), new ByteArraySerializer())) {
                long started = System.nanoTime();
                producer.send(new ProducerRecord<>(arguments[1], "x".getBytes())).get();
                seconds.add((System.nanoTime() - started) / 1e9);
            }
        }
        System.out.println(seconds);
    }
}
