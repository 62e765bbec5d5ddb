import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.common.security.JaasContext;

/**
 * Reads each line of a file, a sasl.jaas.config in base64, as a Java client does. Prints a line for each: "refused", or the login
 * module and the names and values of its options in order of their names, each in base64.
 */
public class ReadJaas {
    public static void main(String[] arguments) throws Exception {
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            System.out.println(read(new String(Base64.getDecoder().decode(line), StandardCharsets.UTF_8)));
        }
    }

    static String read(String jaas) {
        try {
            List<AppConfigurationEntry> entries =
                JaasContext.loadClientContext(Map.of("sasl.jaas.config", new Password(jaas))).configurationEntries();
            StringBuilder told = new StringBuilder(encode(entries.get(0).getLoginModuleName()));
            new TreeMap<>(entries.get(0).getOptions()).forEach((name, value) ->
                told.append(' ').append(encode(name)).append(' ').append(encode(String.valueOf(value))));
            return told.toString();
        } catch (RuntimeException refused) {
            return "refused";
        }
    }

    static String encode(String text) {
        return "=" + Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }
}
