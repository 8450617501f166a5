package elastream.copies;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.spark.SparkContext;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.PluginContext;

/** What is to be kept where, as Python says (copies.py), and what followers report: the driver's part. Thread-safe. */
public final class Desk implements DriverPlugin {
    /** That of the session of this driver. */
    public static volatile Desk open = null;

    private final Map operators = new HashMap();
    private final Map tables = new TreeMap();
    private final Map reports = new HashMap();
    private final Map heard = new HashMap();
    private final List opened = new ArrayList();
    private long version = 0L;

    public Map init(SparkContext context, PluginContext plugin) {
        open = this;
        return Collections.EMPTY_MAP;
    }

    public void shutdown() {
        if (open == this) open = null;
    }

    /**
     * The store that `rdd` opens becomes known, of an operator with so many state partitions: "name" and its name by a tab, or
     * "why" and a sentence where it cannot be copied.
     */
    public String learn(Object rdd, int partitions) {
        try {
            Operator made = Operator.of(rdd, partitions);
            byte[] bytes = made.bytes();
            synchronized (this) {
                operators.put(made.name(), bytes);
            }
            return "name\t" + made.name();
        } catch (Exception problem) {
            boolean said = problem instanceof IllegalArgumentException;
            return "why\t" + Follower.line(said ? problem.getMessage() : problem.toString());
        }
    }

    /** Who is to keep copies of `operator`: "executor partition rank" a line, by tabs. */
    public synchronized void want(String operator, String table) {
        if (table.equals(tables.put(operator, table))) return;
        version++;
    }

    /** Its run is over. */
    public synchronized void forget(String operator) {
        operators.remove(operator);
        if (tables.remove(operator) != null) version++;
    }

    /** "executor milliseconds-ago line" for each line of each report, by tabs; see `Follower.report`. */
    public synchronized String reports() {
        long now = System.currentTimeMillis();
        StringBuilder out = new StringBuilder();
        for (Iterator each = reports.entrySet().iterator(); each.hasNext();) {
            Map.Entry entry = (Map.Entry) each.next();
            long ago = now - ((Long) heard.get(entry.getKey())).longValue();
            String[] lines = ((String) entry.getValue()).split("\n");
            for (int i = 0; i < lines.length; i++)
                out.append(entry.getKey()).append('\t').append(ago).append('\t').append(lines[i]).append('\n');
        }
        return out.toString();
    }

    /** Copies that tasks have opened since the last call: "executor operator partition copied wanted files milliseconds" a line. */
    public synchronized String opened() {
        StringBuilder out = new StringBuilder();
        for (int i = 0; i < opened.size(); i++) out.append(opened.get(i)).append('\n');
        opened.clear();
        return out.toString();
    }

    public synchronized Object receive(Object message) {
        Map said = (Map) message;
        String executor = (String) said.get("executor");
        reports.put(executor, said.get("report"));
        heard.put(executor, Long.valueOf(System.currentTimeMillis()));
        List more = (List) said.get("opened");
        for (int i = 0; i < more.size(); i++) opened.add(executor + "\t" + more.get(i));
        HashMap answer = new HashMap(), missing = new HashMap();
        answer.put("table", Long.valueOf(version));
        answer.put("operators", missing);
        if (((Long) said.get("table")).longValue() == version) return answer;
        Set known = (Set) said.get("known");
        StringBuilder wanted = new StringBuilder();
        for (Iterator each = tables.entrySet().iterator(); each.hasNext();) {
            Map.Entry entry = (Map.Entry) each.next();
            String[] lines = ((String) entry.getValue()).split("\n");
            for (int i = 0; i < lines.length; i++) {
                if (!lines[i].startsWith(executor + "\t")) continue;
                wanted.append(entry.getKey()).append('\t').append(lines[i].substring(executor.length() + 1)).append('\n');
                if (!known.contains(entry.getKey())) missing.put(entry.getKey(), operators.get(entry.getKey()));
            }
        }
        answer.put("wanted", wanted.toString());
        return answer;
    }
}
