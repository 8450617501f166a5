// Branches that are alternates, of which a batch's plan keeps the one of its composition: see branches.py. Compiled by
// driver_side.py as a subclass of Spark's Rule, with Janino: see DriverSide.java.

private org.apache.spark.SparkContext context;
private java.util.function.Function codes;

/**
 * Install the choice in sessions cloned from `session`, for when they analyse the plan of a batch. Java has no other hook
 * before the optimizer. codes: from "QUERY BATCH" to the code of the batch's composition, as text.
 */
public String arm(Object session, Object context, Object codes) {
    this.context = (org.apache.spark.SparkContext) context;
    this.codes = (java.util.function.Function) codes;
    final Object rule = this;
    ((org.apache.spark.sql.classic.SparkSession) session).extensions().injectResolutionRule(
        new scala.runtime.AbstractFunction1() { public Object apply(Object cloned) { return rule; } });
    return "";
}

public String ruleName() { return "elastream.ChosenBranches"; }

/** Return an empty stream with the columns of `frame`. */
public Object emptyAs(Object frame) {
    org.apache.spark.sql.classic.Dataset dataset = (org.apache.spark.sql.classic.Dataset) frame;
    scala.collection.immutable.Seq output = dataset.queryExecution().analyzed().output();
    scala.collection.mutable.ArrayBuffer fresh = new scala.collection.mutable.ArrayBuffer();
    for (int i = 0; i < output.size(); i++)
        fresh.addOne(((org.apache.spark.sql.catalyst.expressions.Attribute) output.apply(i)).newInstance());
    return org.apache.spark.sql.classic.Dataset$.MODULE$.ofRows(
        dataset.sparkSession(), new org.apache.spark.sql.catalyst.plans.logical.LocalRelation(
            (scala.collection.immutable.Seq) fresh.toSeq(),
            (scala.collection.immutable.Seq) scala.collection.immutable.Nil$.MODULE$, true, scala.Option.empty()));
}

/** Choose in the plan of a batch. Other plans stay as they are. */
public org.apache.spark.sql.catalyst.trees.TreeNode apply(org.apache.spark.sql.catalyst.trees.TreeNode plan) {
    String batch = context.getLocalProperty("streaming.sql.batchId");
    return batch == null ? plan : chosen((org.apache.spark.sql.catalyst.plans.logical.LogicalPlan) plan, batch);
}

private org.apache.spark.sql.catalyst.plans.logical.LogicalPlan chosen(
    org.apache.spark.sql.catalyst.plans.logical.LogicalPlan plan, String batch) {
    String[] mark = markOf(plan);
    if (mark == null) {
        scala.collection.mutable.ArrayBuffer children = new scala.collection.mutable.ArrayBuffer();
        for (int i = 0; i < plan.children().size(); i++)
            children.addOne(chosen((org.apache.spark.sql.catalyst.plans.logical.LogicalPlan) plan.children().apply(i), batch));
        return withChildren(plan, children);
    }
    long code = Long.parseLong((String) codes.apply(mark[1] + " " + batch));
    int number = (int) (code / Long.parseLong(mark[2]) % Long.parseLong(mark[3]));
    org.apache.spark.sql.catalyst.plans.logical.LogicalPlan union =
        (org.apache.spark.sql.catalyst.plans.logical.LogicalPlan) plan.children().apply(0);
    org.apache.spark.sql.catalyst.plans.logical.LogicalPlan branch =
        (org.apache.spark.sql.catalyst.plans.logical.LogicalPlan) union.children().apply(number);
    if (number == 0) {
        branch = chosen(branch, batch);
    } else {
        org.apache.spark.sql.catalyst.plans.logical.LogicalPlan input = chosen(
            inputOf((org.apache.spark.sql.catalyst.plans.logical.LogicalPlan) union.children().apply(0), mark[0]), batch);
        branch = reading(branch, mark[0], input);
    }
    return renamed(branch, union.output());
}

/** The words of the mark on `plan`: name of the input, query, weight, radix; null without one. */
private static String[] markOf(org.apache.spark.sql.catalyst.plans.logical.LogicalPlan plan) {
    if (!(plan instanceof org.apache.spark.sql.catalyst.plans.logical.Filter)) return null;
    String condition = ((org.apache.spark.sql.catalyst.plans.logical.Filter) plan).condition().toString();
    int from = condition.indexOf("<elastream ");
    return from < 0 ? null : condition.substring(from + 11, condition.indexOf('>', from)).split(" ");
}

private static boolean isInput(org.apache.spark.sql.catalyst.plans.logical.LogicalPlan plan, String name) {
    return plan instanceof org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias
        && ((org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias) plan).alias().equals(name);
}

private static org.apache.spark.sql.catalyst.plans.logical.LogicalPlan inputOf(
    org.apache.spark.sql.catalyst.plans.logical.LogicalPlan plan, String name) {
    scala.collection.immutable.Seq children = plan.children();
    if (isInput(plan, name)) return (org.apache.spark.sql.catalyst.plans.logical.LogicalPlan) children.apply(0);
    for (int i = 0; i < children.size(); i++) {
        org.apache.spark.sql.catalyst.plans.logical.LogicalPlan input =
            inputOf((org.apache.spark.sql.catalyst.plans.logical.LogicalPlan) children.apply(i), name);
        if (input != null) return input;
    }
    return null;
}

/** Return `plan` with `input` in place of its empty input `name`. */
private static org.apache.spark.sql.catalyst.plans.logical.LogicalPlan reading(
    org.apache.spark.sql.catalyst.plans.logical.LogicalPlan plan, String name,
    org.apache.spark.sql.catalyst.plans.logical.LogicalPlan input) {
    scala.collection.mutable.ArrayBuffer children = new scala.collection.mutable.ArrayBuffer();
    boolean here = isInput(plan, name);
    for (int i = 0; i < plan.children().size(); i++) {
        org.apache.spark.sql.catalyst.plans.logical.LogicalPlan child =
            (org.apache.spark.sql.catalyst.plans.logical.LogicalPlan) plan.children().apply(i);
        children.addOne(here ? renamed(input, child.output()) : reading(child, name, input));
    }
    return withChildren(plan, children);
}

/**
 * Return `plan` with the names and ids of `output` for its columns. A column that may be null in `output` may be here, too:
 * a state store takes no other schema than that of its first batch.
 */
private static org.apache.spark.sql.catalyst.plans.logical.LogicalPlan renamed(
    org.apache.spark.sql.catalyst.plans.logical.LogicalPlan plan, scala.collection.immutable.Seq output) {
    scala.collection.mutable.ArrayBuffer columns = new scala.collection.mutable.ArrayBuffer();
    for (int i = 0; i < output.size(); i++) {
        org.apache.spark.sql.catalyst.expressions.Attribute to =
            (org.apache.spark.sql.catalyst.expressions.Attribute) output.apply(i);
        org.apache.spark.sql.catalyst.expressions.Expression from =
            (org.apache.spark.sql.catalyst.expressions.Expression) plan.output().apply(i);
        if (to.nullable() && !from.nullable()) from = new org.apache.spark.sql.catalyst.expressions.KnownNullable(from);
        columns.addOne(new org.apache.spark.sql.catalyst.expressions.Alias(
            from, to.name(), to.exprId(),
            (scala.collection.immutable.Seq) scala.collection.immutable.Nil$.MODULE$, scala.Option.apply(to.metadata()),
            (scala.collection.immutable.Seq) scala.collection.immutable.Nil$.MODULE$));
    }
    return new org.apache.spark.sql.catalyst.plans.logical.Project(
        (scala.collection.immutable.Seq) columns.toSeq(), plan);
}

private static org.apache.spark.sql.catalyst.plans.logical.LogicalPlan withChildren(
    org.apache.spark.sql.catalyst.plans.logical.LogicalPlan plan, scala.collection.mutable.ArrayBuffer children) {
    boolean same = true;
    for (int i = 0; i < children.size(); i++) same &= children.apply(i) == plan.children().apply(i);
    if (same) return plan;
    return (org.apache.spark.sql.catalyst.plans.logical.LogicalPlan) plan.withNewChildren(
        (scala.collection.immutable.Seq) children.toSeq());
}
