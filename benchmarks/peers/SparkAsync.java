import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.spark.api.java.function.MapPartitionsFunction;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.functions;

/**
 * An async client in Java's mapPartitions, without Python: a sliding window of futures, whose head the task waits for.
 * Usually the window is as long as calls may be in flight, which is what SynapseML does; at its best it is a hundred
 * times longer or more, and the client bounds the calls. Counted is the time from the first call to the end of the
 * action. Some rows go before, or all of them if calls return at once or are requests, so that the compiler is warm.
 */
public final class SparkAsync {
    private static final int WARM_UP = 100; // rows

    /** The results in the order of the rows, each the time at which its call was made, in seconds. */
    private static final class Window implements Iterator<Double> {
        private final Iterator<Double> rows;
        private final int length;
        private final Client client;
        private final long timeout;
        private final Queue<CompletableFuture<Double>> calls = new ArrayDeque<>();

        Window(Iterator<Double> rows, int length, Client client, long timeout) {
            this.rows = rows;
            this.length = length;
            this.client = client;
            this.timeout = timeout;
        }

        @Override
        public boolean hasNext() {
            return rows.hasNext() || !calls.isEmpty();
        }

        @Override
        public Double next() {
            while (calls.size() < length && rows.hasNext()) {
                calls.add(call(rows.next()));
            }
            return calls.remove().join();
        }

        private CompletableFuture<Double> call(double latency) {
            CompletableFuture<Double> result = new CompletableFuture<>();
            double started = System.nanoTime() / 1e9;
            client.call(latency, () -> result.complete(started));
            return result.isDone() ? result : result.orTimeout(timeout, TimeUnit.MILLISECONDS);
        }
    }

    public static void main(String[] arguments) throws Exception {
        JsonNode workload = new ObjectMapper().readTree(new File(arguments[0]));
        List<Double> latencies = new ArrayList<>();
        workload.get("latencies").forEach(latency -> latencies.add(latency.asDouble()));
        String url = workload.get("url").asText();
        long timeout = (long) (workload.get("timeout").asDouble() * 1000);
        boolean best = arguments.length > 1;
        int wanted = workload.get("capacity").asInt();
        int length = best ? workload.get("room").asInt() * wanted : wanted;
        int most = best ? wanted : Client.UNBOUNDED;
        MapPartitionsFunction<Double, Double> calls =
                rows -> new Window(rows, length, new Client(most, url), timeout);

        SparkSession session = SparkSession.builder().master("local[1]").config("spark.ui.enabled", "false").getOrCreate();
        session.sparkContext().setLogLevel("ERROR");
        Row found = null;
        double last = 0;
        boolean warm = !url.isEmpty() || latencies.stream().allMatch(latency -> latency == 0);
        int first = warm ? latencies.size() : Math.min(WARM_UP, latencies.size());
        for (int rows : new int[] {first, latencies.size()}) {
            Dataset<Double> table =
                    session.createDataset(latencies.subList(0, rows), Encoders.DOUBLE()).coalesce(1).cache();
            table.count();
            found = table.mapPartitions(calls, Encoders.DOUBLE())
                    .agg(functions.min("value"), functions.count("value"))
                    .first();
            last = System.nanoTime() / 1e9;
        }
        String version = session.version();
        session.stop();

        String note = "ordered only; a window of " + length + " futures"
                + (best ? ", a client of at most " + wanted + " calls" : "")
                + (warm ? ", after a pass to warm up" : "");
        String line = "{\"seconds\": %.9f, \"rows\": %d, \"version\": \"%s\", \"note\": \"%s\"}%n";
        System.out.printf(Locale.ROOT, line, last - found.getDouble(0), found.getLong(1), version, note);
    }
}
