import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.kafka.common.utils.Utils;

/**
 * Hashes keys as the Java client's partitioner does: reads (int32 length, key) from one file, writes (int32 hash, then an int32
 * partition for each given partition count) to another; big-endian.
 *
 * <p>Run as `java -cp "DIRECTORY-OF-KAFKA-JARS/*" HashKeys.java KEYS HASHES PARTITION-COUNT…`.
 */
public class HashKeys {
    public static void main(String[] args) throws IOException {
        try (DataInputStream keys = new DataInputStream(new BufferedInputStream(Files.newInputStream(Path.of(args[0]))));
             DataOutputStream hashes = new DataOutputStream(new BufferedOutputStream(Files.newOutputStream(Path.of(args[1]))))) {
            while (keys.available() > 0) {
                int hash = Utils.murmur2(keys.readNBytes(keys.readInt()));
                hashes.writeInt(hash);
                for (int i = 2; i < args.length; i++)
                    hashes.writeInt(Utils.toPositive(hash) % Integer.parseInt(args[i]));
            }
        }
    }
}
