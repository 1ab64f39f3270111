import java.util.Scanner;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Runs commands of mqadmin, one for each line that it reads, in one JVM. */
public class Admin {
    public static void main(String[] arguments) {
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            MQAdminStartup.main(lines.nextLine().split(" "));
            System.out.println();  // what a command prints may not end its last line
            System.out.println("end of answer");
            System.out.flush();
        }
        System.exit(0);
    }
}
