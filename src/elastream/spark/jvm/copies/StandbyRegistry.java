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

/**
 * The driver's part: which executor keeps which replica, as Python says (standby.py), and the followers' reports.
 * Thread-safe.
 */
public final class StandbyRegistry implements DriverPlugin {
    /** The instance of this driver's session. */
    public static volatile StandbyRegistry open = null;

    private final Map operators = new HashMap();
    private final Map tables = new TreeMap();
    private final Map reports = new HashMap();
    private final Map reportedAt = new HashMap();
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
     * Register the store that `rdd` opens, of an operator with `partitions` state partitions. Returns "name" and its name
     * by a tab, or "why" and a sentence if it cannot be replicated.
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
            boolean explained = problem instanceof IllegalArgumentException;
            return "why\t" + Follower.line(explained ? problem.getMessage() : problem.toString());
        }
    }

    /** Set the executors that keep replicas of `operator`: lines "executor partition rank", by tabs. */
    public synchronized void want(String operator, String table) {
        if (table.equals(tables.put(operator, table))) return;
        version++;
    }

    /** Drop `operator`: its run is over. */
    public synchronized void forget(String operator) {
        operators.remove(operator);
        if (tables.remove(operator) != null) version++;
    }

    /** Lines of all reports, each after "executor milliseconds-ago", by tabs; see `Follower.report`. */
    public synchronized String reports() {
        long now = System.currentTimeMillis();
        StringBuilder out = new StringBuilder();
        for (Iterator each = reports.entrySet().iterator(); each.hasNext();) {
            Map.Entry entry = (Map.Entry) each.next();
            long ago = now - ((Long) reportedAt.get(entry.getKey())).longValue();
            String[] lines = ((String) entry.getValue()).split("\n");
            for (int i = 0; i < lines.length; i++)
                out.append(entry.getKey()).append('\t').append(ago).append('\t').append(lines[i]).append('\n');
        }
        return out.toString();
    }

    /**
     * Replicas opened by tasks since the last call: lines "executor operator partition replicaVersion version files
     * milliseconds".
     */
    public synchronized String opened() {
        StringBuilder out = new StringBuilder();
        for (int i = 0; i < opened.size(); i++) out.append(opened.get(i)).append('\n');
        opened.clear();
        return out.toString();
    }

    public synchronized Object receive(Object message) {
        Map content = (Map) message;
        String executor = (String) content.get("executor");
        reports.put(executor, content.get("report"));
        reportedAt.put(executor, Long.valueOf(System.currentTimeMillis()));
        List more = (List) content.get("opened");
        for (int i = 0; i < more.size(); i++) opened.add(executor + "\t" + more.get(i));
        HashMap answer = new HashMap(), missing = new HashMap();
        answer.put("table", Long.valueOf(version));
        answer.put("operators", missing);
        if (((Long) content.get("table")).longValue() == version) return answer;
        Set present = (Set) content.get("present");
        StringBuilder rows = new StringBuilder();
        for (Iterator each = tables.entrySet().iterator(); each.hasNext();) {
            Map.Entry entry = (Map.Entry) each.next();
            String[] lines = ((String) entry.getValue()).split("\n");
            for (int i = 0; i < lines.length; i++) {
                if (!lines[i].startsWith(executor + "\t")) continue;
                rows.append(entry.getKey()).append('\t').append(lines[i].substring(executor.length() + 1)).append('\n');
                if (!present.contains(entry.getKey())) missing.put(entry.getKey(), operators.get(entry.getKey()));
            }
        }
        answer.put("requested", rows.toString());
        return answer;
    }
}
