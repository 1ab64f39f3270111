import java.io.FileInputStream;
import java.io.InputStreamReader;
import java.io.Reader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;

/** Prints what java.util.Properties finds in each file: a line of keys and values in UTF-16 hex. */
public class PropertiesOf {
    public static void main(String[] paths) throws Exception {
        for (String path : paths) {
            Properties properties = new Properties();
            try (Reader reader = new InputStreamReader(new FileInputStream(path), StandardCharsets.UTF_8)) {
                properties.load(reader);
            } catch (IllegalArgumentException e) {
                System.out.println("refused");
                continue;
            }
            StringBuilder line = new StringBuilder();
            for (String key : properties.stringPropertyNames()) {
                line.append(hex(key)).append('=').append(hex(properties.getProperty(key))).append(' ');
            }
            System.out.println(line);
        }
    }

    private static String hex(String text) {
        StringBuilder found = new StringBuilder();
        for (char c : text.toCharArray()) {
            found.append(String.format("%04x", (int) c));
        }
        return found.toString();
    }
}
