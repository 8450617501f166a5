// Reasons of Kubernetes for requested executor pods that do not run, and Events about a run. Uses the session's own client.

/** Lines "starting N", and "says sentence", "waits sentence" or "never sentence", by tabs. */
public static String reason(Object context, int registered) throws Exception {
    org.apache.spark.SparkContext spark = (org.apache.spark.SparkContext) context;
    io.fabric8.kubernetes.client.KubernetesClient client = client(spark);
    String namespace = spark.conf().get("spark.kubernetes.namespace", "default");
    java.util.List pods;
    try {
        pods = ((io.fabric8.kubernetes.api.model.PodList) ((io.fabric8.kubernetes.client.dsl.FilterWatchListDeletable)
            ((io.fabric8.kubernetes.client.dsl.Filterable) client.pods().inNamespace(namespace))
                .withLabel("spark-app-selector", spark.applicationId())).list()).getItems();
    } catch (io.fabric8.kubernetes.client.KubernetesClientException refused) {
        return refused(refused, namespace);
    }
    int running = 0, pending = 0;
    String why = "";
    boolean never = false, waits = false;
    for (int i = 0; i < pods.size(); i++) {
        io.fabric8.kubernetes.api.model.Pod pod = (io.fabric8.kubernetes.api.model.Pod) pods.get(i);
        if (!"executor".equals(pod.getMetadata().getLabels().get("spark-role"))) continue;
        if (pod.getMetadata().getDeletionTimestamp() != null || pod.getStatus() == null) continue;
        String phase = pod.getStatus().getPhase();
        if ("Running".equals(phase)) running++;
        if (!"Pending".equals(phase)) continue;
        pending++;
        String name = pod.getMetadata().getName();
        if (why.length() == 0) why = "pod " + name + " is pending";
        java.util.List conditions = pod.getStatus().getConditions();
        for (int k = 0; k < conditions.size(); k++) {
            io.fabric8.kubernetes.api.model.PodCondition each = (io.fabric8.kubernetes.api.model.PodCondition) conditions.get(k);
            if ("PodScheduled".equals(each.getType()) && "False".equals(each.getStatus())) {
                why = "pod " + name + " is not scheduled: " + each.getMessage();
                waits = true;
            }
        }
        java.util.List containers = pod.getStatus().getContainerStatuses();
        for (int k = 0; k < containers.size(); k++) {
            io.fabric8.kubernetes.api.model.ContainerStatus each =
                (io.fabric8.kubernetes.api.model.ContainerStatus) containers.get(k);
            if (each.getState() == null || each.getState().getWaiting() == null) continue;
            String reason = each.getState().getWaiting().getReason(), message = each.getState().getWaiting().getMessage();
            why = "pod " + name + ": " + reason + (message == null ? "" : ": " + message);
            // Every starting pod goes through these.
            waits |= !"ContainerCreating".equals(reason) && !"PodInitializing".equals(reason);
            if ("ImagePullBackOff".equals(reason) || "InvalidImageName".equals(reason)
                || "ErrImageNeverPull".equals(reason)) {
                why = "image " + each.getImage() + " cannot be pulled (" + reason
                    + (message == null ? "" : ": " + message) + ")";
                never = true;
            }
        }
    }
    String out = "starting\t" + Math.max(0, running - registered) + "\n";
    // A pod that was just created has no status yet: that is no refusal.
    if (pending > 0) return out + (never ? "never\t" : waits ? "waits\t" : "says\t") + line(why) + "\n";
    if (running > registered) return out;
    // Spark has not created the pod: a dry run makes the API server say why.
    try {
        String json = "{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"elastream-asks\"},\"spec\":"
            + "{\"containers\":[{\"name\":\"c\",\"image\":\"none\",\"resources\":{\"requests\":{\"cpu\":\""
            + spark.conf().get("spark.kubernetes.executor.request.cores", "1") + "\",\"memory\":\"" + spark.executorMemory()
            + "Mi\"}}}]}}";
        io.fabric8.kubernetes.api.model.Pod pod = (io.fabric8.kubernetes.api.model.Pod)
            io.fabric8.kubernetes.client.utils.Serialization.unmarshal(json, io.fabric8.kubernetes.api.model.Pod.class);
        // The compiler knows no type arguments: these calls return their bound, Object.
        io.fabric8.kubernetes.client.dsl.Resource request = client.resource(pod).inNamespace(namespace);
        ((io.fabric8.kubernetes.client.dsl.CreateOrReplaceable) request.dryRun()).create();
    } catch (io.fabric8.kubernetes.client.KubernetesClientException refused) {
        return out + refused(refused, namespace);
    }
    return out;
}

/**
 * Executors whose pods go: lines "executor milliseconds reason", by tabs, the epoch milliseconds empty if unknown. A pod goes
 * if it is being deleted or a target of a disruption, or its node has a taint that announces the end of the node. Without an
 * executor, why taints cannot be read.
 */
public static String notices(Object context) throws Exception {
    org.apache.spark.SparkContext spark = (org.apache.spark.SparkContext) context;
    io.fabric8.kubernetes.client.KubernetesClient client = client(spark);
    java.util.List pods = executors(client, spark);
    java.util.HashMap tainted = null;
    StringBuilder out = new StringBuilder();
    for (int i = 0; i < pods.size(); i++) {
        io.fabric8.kubernetes.api.model.Pod pod = (io.fabric8.kubernetes.api.model.Pod) pods.get(i);
        String id = (String) pod.getMetadata().getLabels().get("spark-exec-id"), why = "", at = "";
        if (pod.getStatus() == null || !"Running".equals(pod.getStatus().getPhase())) continue;
        if (pod.getMetadata().getDeletionTimestamp() != null) {
            why = "its pod is being deleted";
            at = "" + java.time.Instant.parse(pod.getMetadata().getDeletionTimestamp()).toEpochMilli();
        }
        java.util.List conditions = pod.getStatus().getConditions();
        for (int k = 0; k < conditions.size() && why.length() == 0; k++) {
            io.fabric8.kubernetes.api.model.PodCondition each = (io.fabric8.kubernetes.api.model.PodCondition) conditions.get(k);
            if ("DisruptionTarget".equals(each.getType()) && "True".equals(each.getStatus()))
                why = "its pod is a target of a disruption: " + each.getReason();
        }
        if (why.length() == 0) {
            if (tainted == null) tainted = taints(client);
            Object taint = tainted.get(pod.getSpec().getNodeName());
            if (taint != null) why = "its node has the taint " + taint;
        }
        if (why.length() > 0) out.append(id).append('\t').append(at).append('\t').append(line(why)).append('\n');
    }
    if (tainted != null && tainted.containsKey(""))
        out.append("\t\t").append(line((String) tainted.get(""))).append('\n');
    return out.toString();
}

/** Taints that announce the end of a node, by node; why they cannot be read, by "". */
private static java.util.HashMap taints(io.fabric8.kubernetes.client.KubernetesClient client) {
    java.util.HashMap tainted = new java.util.HashMap();
    try {
        java.util.List nodes = ((io.fabric8.kubernetes.api.model.NodeList)
            ((io.fabric8.kubernetes.client.dsl.Listable) client.nodes()).list()).getItems();
        for (int i = 0; i < nodes.size(); i++) {
            io.fabric8.kubernetes.api.model.Node node = (io.fabric8.kubernetes.api.model.Node) nodes.get(i);
            java.util.List taints = node.getSpec().getTaints();
            for (int k = 0; k < taints.size(); k++) {
                String key = ((io.fabric8.kubernetes.api.model.Taint) taints.get(k)).getKey();
                if (ENDING.contains(" " + key + " ") || key.startsWith("aws-node-termination-handler/"))
                    tainted.put(node.getMetadata().getName(), key);
            }
        }
    } catch (io.fabric8.kubernetes.client.KubernetesClientException refused) {
        tainted.put("", message(refused));
    }
    return tainted;
}

private static final String ENDING = " karpenter.sh/disrupted karpenter.sh/disruption ToBeDeletedByClusterAutoscaler"
    + " cloud.google.com/impending-node-termination node.cloudprovider.kubernetes.io/shutdown ";

/** Annotate the pods of these executors (ids by commas) against consolidation, and no others that this has annotated. */
public static String protect(Object context, String ids) throws Exception {
    org.apache.spark.SparkContext spark = (org.apache.spark.SparkContext) context;
    io.fabric8.kubernetes.client.KubernetesClient client = client(spark);
    java.util.List wanted = java.util.Arrays.asList(ids.split(","));
    java.util.List pods = executors(client, spark);
    for (int i = 0; i < pods.size(); i++) {
        io.fabric8.kubernetes.api.model.Pod pod = (io.fabric8.kubernetes.api.model.Pod) pods.get(i);
        java.util.Map annotations = pod.getMetadata().getAnnotations();
        boolean marked = annotations != null && annotations.containsKey("elastream/holds-state");
        boolean others = !marked && annotations != null && annotations.containsKey("karpenter.sh/do-not-disrupt");
        boolean holds = wanted.contains(pod.getMetadata().getLabels().get("spark-exec-id"));
        if (others || marked == holds) continue; // keep the annotation of a pod template
        io.fabric8.kubernetes.client.dsl.PodResource resource = (io.fabric8.kubernetes.client.dsl.PodResource)
            ((io.fabric8.kubernetes.client.dsl.NonNamespaceOperation) client.pods()
                .inNamespace(pod.getMetadata().getNamespace())).withName(pod.getMetadata().getName());
        ((io.fabric8.kubernetes.client.dsl.EditReplacePatchable) resource).patch(
            io.fabric8.kubernetes.client.dsl.base.PatchContext.of(
                io.fabric8.kubernetes.client.dsl.base.PatchType.JSON_MERGE),
            "{\"metadata\":{\"annotations\":{\"karpenter.sh/do-not-disrupt\":" + (holds ? "\"true\"" : "null")
                + ",\"elastream/holds-state\":" + (holds ? "\"true\"" : "null") + "}}}");
    }
    return "";
}

private static java.util.List executors(
    io.fabric8.kubernetes.client.KubernetesClient client, org.apache.spark.SparkContext spark) {
    String namespace = spark.conf().get("spark.kubernetes.namespace", "default");
    return ((io.fabric8.kubernetes.api.model.PodList) ((io.fabric8.kubernetes.client.dsl.FilterWatchListDeletable)
        ((io.fabric8.kubernetes.client.dsl.Filterable) ((io.fabric8.kubernetes.client.dsl.Filterable)
            client.pods().inNamespace(namespace)).withLabel("spark-app-selector", spark.applicationId()))
            .withLabel("spark-role", "executor")).list()).getItems();
}

/** Lines "number name" by a tab: executors for which each resource quota of the namespace has room, running ones included. */
public static String limit(Object context, int slots) throws Exception {
    org.apache.spark.SparkContext spark = (org.apache.spark.SparkContext) context;
    String namespace = spark.conf().get("spark.kubernetes.namespace", "default");
    java.util.List quotas;
    try {
        quotas = ((io.fabric8.kubernetes.api.model.ResourceQuotaList) ((io.fabric8.kubernetes.client.dsl.Listable)
            client(spark).resourceQuotas().inNamespace(namespace)).list()).getItems();
    } catch (io.fabric8.kubernetes.client.KubernetesClientException refused) {
        return ""; // the account may not read them
    }
    int running = Math.max(0, spark.statusStore().executorList(true).size() - 1);
    long memory = (spark.executorMemory() + spark.conf().getSizeAsMb("spark.executor.memoryOverhead",
        Math.max(384, spark.executorMemory() / 10) + "m")) << 20;
    String cores = spark.conf().get("spark.kubernetes.executor.request.cores", "" + Math.max(1, slots));
    java.util.HashMap needs = new java.util.HashMap();
    needs.put("pods", "1");
    needs.put("count/pods", "1");
    needs.put("cpu", cores);
    needs.put("requests.cpu", cores);
    needs.put("memory", "" + memory);
    needs.put("requests.memory", "" + memory);
    needs.put("limits.memory", "" + memory);
    StringBuilder out = new StringBuilder();
    for (int i = 0; i < quotas.size(); i++) {
        io.fabric8.kubernetes.api.model.ResourceQuota quota = (io.fabric8.kubernetes.api.model.ResourceQuota) quotas.get(i);
        if (quota.getStatus() == null || quota.getStatus().getHard() == null) continue;
        java.util.Iterator all = quota.getStatus().getHard().keySet().iterator();
        while (all.hasNext()) {
            String name = (String) all.next();
            Object used = quota.getStatus().getUsed() == null ? null : quota.getStatus().getUsed().get(name);
            if (!needs.containsKey(name)) continue;
            double free = amount(quota.getStatus().getHard().get(name)) - (used == null ? 0.0 : amount(used));
            double need = amount(new io.fabric8.kubernetes.api.model.Quantity((String) needs.get(name)));
            out.append(running + (long) Math.max(0.0, Math.floor(free / need))).append("\tresource quota '")
                .append(quota.getMetadata().getName()).append("' (").append(name).append(") of namespace '")
                .append(namespace).append("'\n");
        }
    }
    return out.toString();
}

private static double amount(Object quantity) {
    return io.fabric8.kubernetes.api.model.Quantity
        .getAmountInBytes((io.fabric8.kubernetes.api.model.Quantity) quantity).doubleValue();
}

/** Delete pods and config maps of an earlier application; return what was deleted, a line per kind. */
public static String releaseLeftovers(Object context, String application) throws Exception {
    org.apache.spark.SparkContext spark = (org.apache.spark.SparkContext) context;
    io.fabric8.kubernetes.client.KubernetesClient client = client(spark);
    String namespace = spark.conf().get("spark.kubernetes.namespace", "default");
    int pods = deleted((io.fabric8.kubernetes.client.dsl.Filterable) client.pods().inNamespace(namespace), application);
    deleted((io.fabric8.kubernetes.client.dsl.Filterable) client.configMaps().inNamespace(namespace), application);
    return pods == 0 ? "" : pods + (pods == 1 ? " pod" : " pods") + "\n";
}

/** Create an Event from JSON; return nothing, or "refused sentence". */
public static String event(Object context, String json) throws Exception {
    io.fabric8.kubernetes.api.model.Event event = (io.fabric8.kubernetes.api.model.Event)
        io.fabric8.kubernetes.client.utils.Serialization.unmarshal(json, io.fabric8.kubernetes.api.model.Event.class);
    io.fabric8.kubernetes.client.dsl.Resource made = client((org.apache.spark.SparkContext) context)
        .resource(event).inNamespace(event.getMetadata().getNamespace());
    try {
        ((io.fabric8.kubernetes.client.dsl.CreateOrReplaceable) made).create();
    } catch (io.fabric8.kubernetes.client.KubernetesClientException refused) {
        return "refused\t" + line(refused.getMessage()) + "\n";
    }
    return "";
}

private static int deleted(io.fabric8.kubernetes.client.dsl.Filterable all, String application) {
    io.fabric8.kubernetes.client.dsl.Filterable own =
        (io.fabric8.kubernetes.client.dsl.Filterable) all.withLabel("spark-app-selector", application);
    return ((io.fabric8.kubernetes.client.dsl.Deletable) own.withLabel("spark-role", "executor")).delete().size();
}

private static io.fabric8.kubernetes.client.KubernetesClient client(org.apache.spark.SparkContext spark) throws Exception {
    Object backend = spark.schedulerBackend();
    return (io.fabric8.kubernetes.client.KubernetesClient)
        backend.getClass().getMethod("kubernetesClient", new Class[0]).invoke(backend, new Object[0]);
}

private static String message(io.fabric8.kubernetes.client.KubernetesClientException error) {
    return error.getStatus() != null && error.getStatus().getMessage() != null
        ? error.getStatus().getMessage() : "" + error.getMessage();
}

private static String refused(io.fabric8.kubernetes.client.KubernetesClientException error, String namespace) {
    String message = message(error);
    boolean full = message.contains("exceeded quota");
    boolean never = !full && (error.getCode() == 401 || error.getCode() == 403 || error.getCode() == 404);
    return (never ? "never\t" : "waits\t") + "Kubernetes refuses pods in namespace '" + namespace + "': " + line(message) + "\n";
}
