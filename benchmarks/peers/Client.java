import io.netty.bootstrap.Bootstrap;
import io.netty.channel.Channel;
import io.netty.channel.ChannelFuture;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.SimpleChannelInboundHandler;
import io.netty.channel.nio.NioEventLoopGroup;
import io.netty.channel.socket.nio.NioSocketChannel;
import io.netty.handler.codec.http.DefaultFullHttpRequest;
import io.netty.handler.codec.http.FullHttpRequest;
import io.netty.handler.codec.http.FullHttpResponse;
import io.netty.handler.codec.http.HttpClientCodec;
import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpMethod;
import io.netty.handler.codec.http.HttpObjectAggregator;
import io.netty.handler.codec.http.HttpVersion;
import io.netty.util.concurrent.DefaultThreadFactory;
import java.net.URI;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/**
 * Plays a service and its client: a call is answered after its latency, or at once if that is 0; with an address it is
 * a request by Netty, on one thread. At most so many run at a time, each on a connection of its own; the others wait
 * for one of them to end. A request that fails ends the program.
 */
final class Client implements AutoCloseable {
    private final int most;
    private final ScheduledExecutorService timer;
    private final EventLoopGroup loop; // null: no address
    private final URI address;
    private final Bootstrap bootstrap = new Bootstrap();
    private final Deque<Connection> idle = new ConcurrentLinkedDeque<>();
    // Owns the lock. Nothing waits here unless `running` equals `most`.
    private final Queue<Runnable> waiting = new ArrayDeque<>();
    private int running;

    Client(int most, String url) {
        this.most = most;
        timer = Executors.newSingleThreadScheduledExecutor(new DefaultThreadFactory("service", true));
        address = url.isEmpty() ? null : URI.create(url);
        loop = url.isEmpty() ? null : new NioEventLoopGroup(1, new DefaultThreadFactory("client", true));
        if (loop != null) {
            bootstrap.group(loop).channel(NioSocketChannel.class).remoteAddress(address.getHost(), address.getPort());
            bootstrap.handler(new ChannelInitializer<Channel>() {
                @Override
                protected void initChannel(Channel channel) {
                    channel.pipeline().addLast(new HttpClientCodec(), new HttpObjectAggregator(1 << 20), new Connection());
                }
            });
        }
    }

    void call(double latency, Runnable answer) {
        if (latency == 0) {
            answer.run();
            return;
        }
        synchronized (waiting) {
            if (running == most) {
                waiting.add(() -> start(latency, answer));
                return;
            }
            running++;
        }
        start(latency, answer);
    }

    @Override
    public void close() {
        timer.shutdownNow();
        if (loop != null) {
            loop.shutdownGracefully(0, 1, TimeUnit.SECONDS);
        }
    }

    private void start(double latency, Runnable answer) {
        if (loop == null) {
            timer.schedule(() -> end(answer), (long) (latency * 1e9), TimeUnit.NANOSECONDS);
            return;
        }
        Connection connection = idle.pollLast();
        if (connection != null) {
            connection.ask(answer);
            return;
        }
        ChannelFuture connecting = bootstrap.connect();
        connecting.addListener(done -> {
            if (!done.isSuccess()) {
                fail(done.cause());
            }
            connecting.channel().pipeline().get(Connection.class).ask(answer);
        });
    }

    private void end(Runnable answer) {
        Runnable next;
        synchronized (waiting) {
            next = waiting.poll();
            if (next == null) {
                running--;
            }
        }
        if (next != null) {
            next.run();
        }
        answer.run();
    }

    private static void fail(Object reason) {
        System.err.println("a request failed: " + reason);
        Runtime.getRuntime().halt(1);
    }

    /** Has one request at a time. */
    private final class Connection extends SimpleChannelInboundHandler<FullHttpResponse> {
        private Channel channel;
        private Runnable answer;

        void ask(Runnable then) {
            answer = then;
            FullHttpRequest request = new DefaultFullHttpRequest(HttpVersion.HTTP_1_1, HttpMethod.GET, address.getPath());
            request.headers().set(HttpHeaderNames.HOST, address.getAuthority());
            channel.writeAndFlush(request);
        }

        @Override
        public void handlerAdded(ChannelHandlerContext context) {
            channel = context.channel();
        }

        @Override
        protected void channelRead0(ChannelHandlerContext context, FullHttpResponse response) {
            if (response.status().code() != 200) {
                fail(response.status());
            }
            Runnable answered = answer;
            idle.addLast(this);
            end(answered);
        }

        @Override
        public void exceptionCaught(ChannelHandlerContext context, Throwable reason) {
            fail(reason);
        }
    }
}
