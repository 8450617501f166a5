package elastream.copies;

import java.io.File;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider;
import org.apache.spark.sql.execution.streaming.state.NoPrefixKeyStateEncoderSpec;
import org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider;
import org.apache.spark.sql.execution.streaming.state.StateStore;
import org.apache.spark.sql.execution.streaming.state.StateStoreConf;
import org.apache.spark.sql.execution.streaming.state.StateStoreProvider;
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;

// One state partition whose task moves between executors that keep copies of it, without Spark around it: real providers, real
// files. What differs from a map that was changed in the same way is printed.
public final class CopiesCheck {
    private static final int KEYS = 300;

    private final Random random;
    private final Operator operator;
    private final File folder;
    private final boolean rocks;
    private final TreeMap expected = new TreeMap();
    private StateStoreProvider owner;
    private Replica copy;
    private long committed = 0L;
    private int taken = 0, behind = 0, failed = 0, wrong = 0;

    private CopiesCheck(String store, String folder, long seed) throws Exception {
        this.random = new Random(seed);
        this.folder = new File(folder);
        this.rocks = store.equals("disk");
        SQLConf conf = new SQLConf();
        conf.setConfString("spark.sql.streaming.stateStore.providerClass", rocks ? Operator.ROCKS : Operator.MAPS);
        conf.setConfString("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true");
        // Old files go soon, so that a copy is late for some.
        conf.setConfString("spark.sql.streaming.minBatchesToRetain", "2");
        conf.setConfString("spark.sql.streaming.minVersionsToDelete", "0");
        conf.setConfString("spark.sql.streaming.stateStore.minDeltasForSnapshot", "4");
        StructType key = new StructType().add("k", "long", false), value = new StructType().add("n", "long", false);
        operator = new Operator(
            java.util.UUID.randomUUID().toString(), new File(folder, "state").toURI().toString(), 0L, 1, key, value,
            new NoPrefixKeyStateEncoderSpec(key), false, false,
            new StateStoreConf(conf, scala.collection.immutable.Map$.MODULE$.empty()), new Configuration(), scala.Option.empty());
        new File(folder, "commits").mkdirs();
        owner = provider();
    }

    private StateStoreProvider provider() {
        StateStoreProvider made = rocks
            ? (StateStoreProvider) new RocksDBStateStoreProvider() : (StateStoreProvider) new HDFSBackedStateStoreProvider();
        operator.open(made, 0);
        return made;
    }

    private static UnsafeRow row(long value) {
        UnsafeRow made = new UnsafeRow(1);
        made.pointTo(new byte[16], 16);
        made.setLong(0, value);
        return made;
    }

    /** One attempt of a batch at `at`; what it changes, in `kept` if given. */
    private void attempt(StateStoreProvider at, long seed, Map kept) throws Exception {
        Random changes = new Random(seed);
        StateStore store = at.getStore(committed, scala.Option.empty(), false, false);
        for (int i = changes.nextInt(60); i > 0; i--) {
            long key = changes.nextInt(KEYS), value = changes.nextLong();
            if (changes.nextInt(4) == 0) {
                store.remove(row(key), "default");
                if (kept != null) kept.remove(Long.valueOf(key));
            } else {
                store.put(row(key), row(value), "default");
                if (kept != null) kept.put(Long.valueOf(key), Long.valueOf(value));
            }
        }
        store.commit();
    }

    private void batch() throws Exception {
        if (random.nextInt(4) == 0) {
            // Another executor ran the task first, on other records, and its batch was not committed.
            StateStoreProvider other = provider();
            attempt(other, random.nextLong(), null);
            if (random.nextBoolean() && copy != null) copy.follow(new Commits(operator).count());
            other.close();
        }
        attempt(owner, random.nextLong(), expected);
        if (random.nextInt(3) == 0 && copy != null) copy.follow(new Commits(operator).count());
        new File(folder, "commits/" + committed).createNewFile();
        committed++;
    }

    private Map rows(StateStoreProvider of) throws Exception {
        TreeMap found = new TreeMap();
        StateStore store = of.getStore(committed, scala.Option.empty(), false, false);
        for (scala.collection.Iterator each = store.iterator("default"); each.hasNext();) {
            UnsafeRowPair pair = (UnsafeRowPair) each.next();
            found.put(Long.valueOf(pair.key().getLong(0)), Long.valueOf(pair.value().getLong(0)));
        }
        store.abort();
        return found;
    }

    private void compare(StateStoreProvider with, String called) throws Exception {
        Map found = rows(with);
        if (found.equals(expected)) return;
        wrong++;
        System.out.println(called + " at " + committed + ": " + found.size() + " rows, not the " + expected.size() + " expected");
    }

    private void step() throws Exception {
        int what = random.nextInt(10);
        if (what < 5) batch();
        else if (what == 5) owner.doMaintenance();
        else if (what == 6) {
            if (copy == null) copy = rocks ? (Replica) new RocksReplica(operator, 0, 0) : (Replica) new MapReplica(operator, 0, 0);
            if (committed > 0L) copy.load(new Commits(operator).count());
        } else if (what == 7 && copy != null) {
            File state = new File(folder, "state/0/0"), aside = new File(folder, "state/0/aside");
            boolean breaks = random.nextInt(3) == 0 && copy.version < committed && copy.state() == Replica.FOLLOWING;
            if (breaks) state.renameTo(aside);
            copy.follow(committed);
            if (breaks) {
                deleted(state);
                aside.renameTo(state);
                if (copy.state() != Replica.WANTED) throw new IllegalStateException("a copy that failed is " + copy.state());
                failed++;
            }
        } else if (what == 8 && copy != null) {
            long had = copy.version;
            StateStoreProvider given = copy.take();
            if (given == null) return;
            copy = null;
            taken++;
            if (had < committed) behind++;
            if (random.nextBoolean()) compare(given, "a copy of " + had);
            owner.close();
            owner = given;
        } else if (what == 9) {
            StateStoreProvider cold = provider();
            compare(cold, "the checkpoint");
            cold.close();
        }
    }

    private static void deleted(File of) {
        File[] all = of.listFiles();
        for (int i = 0; all != null && i < all.length; i++) deleted(all[i]);
        of.delete();
    }

    /** `main FOLDER STEPS STORE:SEED...`: a line for each, "store seed wrong committed taken behind failed". */
    public static void main(String[] with) throws Exception {
        for (int run = 2; run < with.length; run++) {
            String[] which = with[run].split(":");
            CopiesCheck check = new CopiesCheck(which[0], with[0] + "/" + run, Long.parseLong(which[1]));
            for (int i = Integer.parseInt(with[1]); i > 0; i--) check.step();
            check.compare(check.owner, "the last owner");
            check.owner.doMaintenance();
            StateStoreProvider cold = check.provider();
            check.compare(cold, "the checkpoint");
            cold.close();
            System.out.println(which[0] + " " + which[1] + " " + check.wrong + " " + check.committed + " " + check.taken + " "
                + check.behind + " " + check.failed);
        }
        System.exit(0);
    }
}
