package elastream.copies;

import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreMap;
import org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider;
import org.apache.spark.sql.execution.streaming.state.RocksDB;
import org.apache.spark.sql.execution.streaming.state.RocksDBFileManager;
import org.apache.spark.sql.execution.streaming.state.StateStoreProvider;
import org.apache.spark.sql.execution.streaming.state.StateStoreProviderId;

/** Private members of Spark. All are looked up when a follower starts, so that a missing one is known then. */
final class SparkInternals {
    private static final String SCALA = "org$apache$spark$sql$execution$streaming$state$";

    static final Method LOAD_MAP, UPDATE_MAP, MAPS;
    static final Method REPLAY, KEYS, KEYS_LOADED, INTERNAL, INTERNAL_LOADED, DB, FLUSHING, MAPPING, LAST_SNAPSHOT, FILES, REPLAYED;
    private static final Object STORES;
    private static final Method LOADED, IS_LOADED;

    static {
        try {
            Class number = Long.TYPE;
            Class maps = HDFSBackedStateStoreProvider.class;
            LOAD_MAP = method(maps, "loadMap", new Class[] {number});
            UPDATE_MAP = method(maps, "updateFromDeltaFile", new Class[] {number, HDFSBackedStateStoreMap.class});
            MAPS = method(maps, SCALA + "HDFSBackedStateStoreProvider$$loadedMaps", new Class[0]);
            Class rocks = RocksDB.class;
            Class pairs = java.lang.reflect.Array.newInstance(scala.Tuple2.class, 0).getClass();
            REPLAY = method(rocks, "replayChangelog", new Class[] {pairs});
            KEYS = method(rocks, "numKeysOnWritingVersion", new Class[0]);
            KEYS_LOADED = method(rocks, "numKeysOnLoadedVersion_$eq", new Class[] {number});
            INTERNAL = method(rocks, "numInternalKeysOnWritingVersion", new Class[0]);
            INTERNAL_LOADED = method(rocks, "numInternalKeysOnLoadedVersion_$eq", new Class[] {number});
            DB = method(rocks, "db", new Class[0]);
            FLUSHING = method(rocks, "flushOptions", new Class[0]);
            MAPPING = method(rocks, SCALA + "RocksDB$$rocksDBFileMapping", new Class[0]);
            LAST_SNAPSHOT = method(rocks, SCALA + "RocksDB$$lastSnapshotVersion_$eq", new Class[] {number});
            REPLAYED = method(rocks, "loadMetrics", new Class[0]);
            FILES = method(RocksDBFileManager.class, "versionToRocksDBFiles", new Class[0]);
            Class stores = Class.forName(Operator.STATE + "StateStore$", true, SparkInternals.class.getClassLoader());
            STORES = stores.getField("MODULE$").get(null);
            LOADED = method(stores, "loadedProviders", new Class[0]);
            IS_LOADED = method(stores, "isLoaded", new Class[] {StateStoreProviderId.class});
        } catch (Exception missing) {
            throw new IllegalStateException("this Spark lacks internals that copies need: " + missing);
        }
    }

    /** Return true if Spark itself has a store open in this executor. */
    static boolean isLoaded(StateStoreProviderId id) throws Exception {
        return ((Boolean) call(IS_LOADED, STORES, new Object[] {id})).booleanValue();
    }

    /** Give `provider` to Spark as the open one for `id`; return false, and do nothing, if it has one. */
    static boolean hand(StateStoreProviderId id, StateStoreProvider provider) throws Exception {
        scala.collection.mutable.HashMap loaded = (scala.collection.mutable.HashMap) call(LOADED, STORES, new Object[0]);
        synchronized (loaded) { // Spark's own lock
            if (loaded.contains(id)) return false;
            loaded.put(id, provider);
            return true;
        }
    }

    static Method method(Class owner, String name, Class[] kinds) throws Exception {
        Method member = owner.getDeclaredMethod(name, kinds);
        member.setAccessible(true);
        return member;
    }

    /** Call `what`, and pass on what it throws. */
    static Object call(Method what, Object on, Object[] with) throws Exception {
        try {
            return what.invoke(on, with);
        } catch (InvocationTargetException raised) {
            Throwable cause = raised.getCause();
            if (cause instanceof Error) throw (Error) cause;
            throw (Exception) cause;
        }
    }

    /** Return a private field of `of`, of its class or one above. */
    static Object field(Object of, String name) throws Exception {
        for (Class kind = of.getClass(); kind != null; kind = kind.getSuperclass()) {
            Field[] all = kind.getDeclaredFields();
            for (int i = 0; i < all.length; i++) {
                if (!all[i].getName().equals(name)) continue;
                all[i].setAccessible(true);
                return all[i].get(of);
            }
        }
        throw new NoSuchFieldException(name + " of " + of.getClass().getName());
    }
}
