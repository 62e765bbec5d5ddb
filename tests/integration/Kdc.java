import java.io.File;
import org.apache.kerby.kerberos.kerb.server.KdcConfigKey;
import org.apache.kerby.kerberos.kerb.server.SimpleKdcServer;

/**
 * A Kerberos server for tests, on 127.0.0.1, until its input ends: Kdc DIRECTORY PORT.
 *
 * Leaves in the directory: kafka.keytab of the brokers; alice.keytab of a user; bob.keytab of one whose key has been replaced
 * since; nobody.keytab of one that has been deleted since.
 */
public class Kdc {
    static final String REALM = "EXAMPLE.COM";

    public static void main(String[] arguments) throws Exception {
        File directory = new File(arguments[0]);
        SimpleKdcServer kdc = new SimpleKdcServer();
        kdc.setWorkDir(directory);
        kdc.setKdcRealm(REALM);
        kdc.setKdcHost("127.0.0.1");
        kdc.setAllowTcp(true);
        kdc.setAllowUdp(false);
        kdc.setKdcTcpPort(Integer.parseInt(arguments[1]));
        kdc.getKdcConfig().setLong(KdcConfigKey.MINIMUM_TICKET_LIFETIME, 1L);
        kdc.init();
        kdc.createAndExportPrincipals(new File(directory, "kafka.keytab"), "kafka/127.0.0.1@" + REALM, "kafka/localhost@" + REALM);
        kdc.createAndExportPrincipals(new File(directory, "alice.keytab"), "alice@" + REALM);
        kdc.createAndExportPrincipals(new File(directory, "bob.keytab"), "bob@" + REALM);
        kdc.getKadmin().changePassword("bob@" + REALM, "another one");
        kdc.createAndExportPrincipals(new File(directory, "nobody.keytab"), "nobody@" + REALM);
        kdc.deletePrincipal("nobody@" + REALM);
        kdc.start();
        System.out.println("ready");
        while (System.in.read() >= 0) {
        }
        kdc.stop();
    }
}
