// Files of a checkpoint's state on any file system of Hadoop, listed in the background. Compiled by listed_files.py in
// Janino's Java (no lambdas, no generics).

private static final int SLOWER = 50; // least pause, in durations of a listing
private static final int NEWEST = 2; // newest snapshots of a store to open: the last one may belong to an uncommitted batch

private org.apache.hadoop.conf.Configuration conf;
private org.apache.hadoop.fs.Path root;
private long pause, notBefore;
private boolean runs;
private long number;
private String newest = "";
private java.util.HashMap opened = new java.util.HashMap(); // metadata by path of a snapshot

/** `conf`: Hadoop's settings of the session, in which its state stores write. */
public void begin(Object conf, String root, int pause) {
    this.conf = (org.apache.hadoop.conf.Configuration) conf;
    this.root = new org.apache.hadoop.fs.Path(root);
    this.pause = pause;
    notBefore = System.currentTimeMillis();
}

/**
 * The newest listing, if it is not number `known`: "number fault", then lines "path bytes modified metadata", by tabs. Paths are
 * below the root, metadata are those of a store's newest snapshots of RocksDB. Begins a new listing if it is time.
 */
public synchronized String look(int known) {
    if (!runs && System.currentTimeMillis() >= notBefore) {
        runs = true;
        Thread thread = new Thread("elastream-state-listing") {
            public void run() { list(); }
        };
        thread.setDaemon(true);
        thread.start();
    }
    return number == known ? "" : newest;
}

private void list() {
    long began = System.currentTimeMillis();
    String fault = "", files = "";
    try {
        files = listed();
    } catch (Throwable failed) { // a file system that is not there, not allowed, or lacks a class
        fault = String.valueOf(failed.getMessage() == null ? failed : (Object) failed.getMessage());
    }
    long now = System.currentTimeMillis();
    synchronized (this) {
        number++;
        newest = number + "\t" + line(fault) + "\n" + files;
        notBefore = now + Math.max(pause, SLOWER * (now - began));
        runs = false;
    }
}

private String listed() throws java.io.IOException {
    org.apache.hadoop.fs.FileSystem system = root.getFileSystem(conf);
    int from = system.makeQualified(root).toUri().getPath().length() + 1;
    java.util.TreeMap files = new java.util.TreeMap(); // line by path
    java.util.HashMap snapshots = new java.util.HashMap(); // versions of a folder, newest first
    java.util.HashMap stillOpened = new java.util.HashMap();
    org.apache.hadoop.fs.RemoteIterator all = system.listFiles(root, true);
    while (all.hasNext()) {
        org.apache.hadoop.fs.FileStatus each = (org.apache.hadoop.fs.FileStatus) all.next();
        String name = each.getPath().getName(), path = each.getPath().toUri().getPath().substring(from);
        if (!name.matches("\\d{1,18}(_[\\w-]+)?\\.(delta|changelog|snapshot|zip)")) continue;
        files.put(path, each);
        if (!name.endsWith(".zip")) continue;
        String folder = each.getPath().getParent().toUri().getPath();
        java.util.TreeMap versions = (java.util.TreeMap) snapshots.get(folder);
        if (versions == null) snapshots.put(folder, versions = new java.util.TreeMap(java.util.Collections.reverseOrder()));
        Long version = Long.valueOf(name.split("[_.]")[0]);
        String other = (String) versions.get(version); // of a batch that ran twice, the greater name counts
        if (other == null || path.compareTo(other) > 0) versions.put(version, path);
    }
    java.util.Iterator folders = snapshots.values().iterator();
    while (folders.hasNext()) {
        java.util.Iterator versions = ((java.util.TreeMap) folders.next()).values().iterator();
        for (int i = 0; i < NEWEST && versions.hasNext(); i++) {
            String path = (String) versions.next();
            String known = (String) opened.get(path);
            String text = known != null ? known : metadata(system, (org.apache.hadoop.fs.FileStatus) files.get(path));
            if (text.length() > 0) stillOpened.put(path, text);
        }
    }
    opened = stillOpened;
    StringBuilder out = new StringBuilder();
    java.util.Iterator entries = files.entrySet().iterator();
    while (entries.hasNext()) {
        java.util.Map.Entry entry = (java.util.Map.Entry) entries.next();
        org.apache.hadoop.fs.FileStatus each = (org.apache.hadoop.fs.FileStatus) entry.getValue();
        String about = (String) opened.get(entry.getKey());
        out.append(entry.getKey()).append('\t').append(each.getLen()).append('\t').append(each.getModificationTime())
            .append('\t').append(about == null ? "" : line(about)).append('\n');
    }
    return out.toString();
}

/** The text of a snapshot's entry "metadata"; empty if it cannot be read. */
private static String metadata(org.apache.hadoop.fs.FileSystem system, org.apache.hadoop.fs.FileStatus snapshot) {
    try {
        java.util.zip.ZipInputStream entries = new java.util.zip.ZipInputStream(system.open(snapshot.getPath()));
        try {
            java.util.zip.ZipEntry entry = entries.getNextEntry();
            while (entry != null && !entry.getName().equals("metadata")) entry = entries.getNextEntry();
            return entry == null ? "" : new String(entries.readAllBytes(), "UTF-8");
        } finally {
            entries.close();
        }
    } catch (java.io.IOException deleted) { // since it was listed, or torn
        return "";
    }
}
