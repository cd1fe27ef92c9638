// Command gitserve serves the git repositories below a directory over HTTP, with the latency and bandwidth of a distant
// server, for demonstrations and measurements.
//
// It prints one URL on each line, and then serves until SIGINT or SIGTERM. If its standard input is a pipe, it also
// ends when the pipe is closed, so that it does not outlive the program that started it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "gitserve:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	root := flag.String("root", ".", "serve the repositories below this `directory`")
	addr := flag.String("addr", "127.0.0.1:0", "listen at this `address`")
	rtt := flag.Duration("rtt", 50*time.Millisecond, "round-trip time")
	bandwidth := flag.Int64("bandwidth", 0, "`bytes` per second in each direction, 0 for no limit")
	noSizes := flag.Bool("no-object-info", false, "do not answer requests for object sizes, as public forges do")
	logged := flag.Bool("log", false, "print every request to standard error at the end, with the number of blobs sent")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	// Without the flag -log, packs are not read, because that would take processor time that the measurement needs.
	o := gittest.ServerOptions{Root: *root, Addr: *addr, RTT: *rtt, Bandwidth: *bandwidth, Cheap: !*logged,
		Stderr: os.Stderr}
	s, err := gittest.Serve(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if *noSizes {
		s.Inject(gittest.Fault{Kind: gittest.NoObjectInfo})
	}
	repos, err := s.Repos()
	if err != nil {
		return err
	}
	if len(repos) == 0 {
		return fmt.Errorf("no repository below %s", *root)
	}
	for _, repo := range repos {
		fmt.Println(s.URL(repo))
	}
	if isPipe(os.Stdin) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		// The goroutine ends only with the process, because a read from standard input cannot be canceled.
		go func() {
			io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
	}
	<-ctx.Done()
	if *logged {
		fmt.Fprint(os.Stderr, s.Log())
	}
	return nil
}

// isPipe reports whether a file is a pipe. Standard input is a pipe if another program has started this process, and
// otherwise a terminal or, in background processes of a shell, /dev/null.
func isPipe(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&(os.ModeNamedPipe|os.ModeSocket) != 0
}
