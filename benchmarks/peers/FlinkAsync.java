import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.util.Collections;
import java.util.Locale;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.streaming.api.datastream.AsyncDataStream;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.async.ResultFuture;
import org.apache.flink.streaming.api.functions.async.RichAsyncFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;

/**
 * A sequence of row numbers, AsyncDataStream, and a sink that counts; one task. Counted is the time from the first
 * asyncInvoke to the last row at the sink; the program prints it as JSON. The operator's capacity is a hundred times the
 * number of calls or more, and the client bounds the calls. Each line of the input is a job of so many rows.
 */
public final class FlinkAsync {
    private static double[] latencies;
    private static int calls;
    private static String url;
    // Only the one task writes these; main reads them when the job has ended.
    private static long first;
    private static long last;
    private static long arrived;

    static final class Call extends RichAsyncFunction<Long, Double> {
        private transient Client client;

        @Override
        public void open(OpenContext context) {
            client = new Client(calls, url);
        }

        @Override
        public void close() {
            if (client != null) {
                client.close();
            }
        }

        @Override
        public void asyncInvoke(Long row, ResultFuture<Double> result) {
            if (first == 0) {
                first = System.nanoTime();
            }
            double latency = latencies[row.intValue()];
            client.call(latency, () -> result.complete(Collections.singleton(latency)));
        }
    }

    public static void main(String[] arguments) throws Exception {
        JsonNode workload = new ObjectMapper().readTree(new File(arguments[0]));
        JsonNode given = workload.get("latencies");
        latencies = new double[given.size()];
        for (int row = 0; row < latencies.length; row++) {
            latencies[row] = given.get(row).asDouble();
        }
        url = workload.get("url").asText();
        calls = workload.get("capacity").asInt();
        int capacity = workload.get("room").asInt() * calls;
        String note = "a capacity of " + workload.get("room").asInt() + " times the calls in flight; the client limits these";
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            job(workload, Integer.parseInt(line), capacity);
            String told = "{\"seconds\": %.9f, \"rows\": %d, \"version\": \"%s\", \"note\": \"%s\"}%n";
            System.out.printf(Locale.ROOT, told, (last - first) / 1e9, arrived, arguments[1], note);
        }
    }

    private static void job(JsonNode workload, int rows, int capacity) throws Exception {
        long timeout = (long) (workload.get("timeout").asDouble() * 1000);
        first = 0;
        arrived = 0;
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(1);
        DataStream<Long> numbers = environment.fromSequence(0, rows - 1);
        DataStream<Double> results = workload.get("mode").asText().equals("ordered")
                ? AsyncDataStream.orderedWait(numbers, new Call(), timeout, TimeUnit.MILLISECONDS, capacity)
                : AsyncDataStream.unorderedWait(numbers, new Call(), timeout, TimeUnit.MILLISECONDS, capacity);
        results.map(result -> {
            arrived++;
            last = System.nanoTime();
            return result;
        }).returns(Types.DOUBLE).sinkTo(new DiscardingSink<>());
        environment.execute();
    }
}
