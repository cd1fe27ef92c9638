package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

// The benchmark -leak mounts, reads and unmounts many times, and measures how much memory and how many files remain.

type leakOptions struct{ rounds, warm int }

// leakFlags declares the flags that only the mode -leak has. The result is reports whether the user has passed -leak.
func leakFlags() (o *leakOptions, is *bool) {
	o = &leakOptions{}
	is = flag.Bool("leak", false, "mount, read and unmount many times, and measure the memory and files that remain")
	flag.IntVar(&o.rounds, "rounds-of-mounts", 1000, "with -leak: number of rounds")
	flag.IntVar(&o.warm, "warm", 100, "with -leak: number of rounds before the first measurement")
	return o, is
}

// left contains the memory, goroutines, files and mounts that exist after a number of rounds.
type left struct {
	worker, supervisor weight
	goroutines         int
	files, mounts      int
}

// leaks runs the benchmark -leak.
func (b *bench) leaks(o leakOptions, m manyOptions) (err error) {
	var names []string
	for i := range m.repos {
		names = append(names, fmt.Sprintf("repo%d.git", i))
	}
	socket := filepath.Join(b.work, "metrics.sock")
	h, err := b.host(m.files, names, "--metrics", "unix:"+socket)
	if err != nil {
		return err
	}
	defer h.end(&err)
	table := tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)
	fmt.Fprintf(table, "rounds\tworker\tgoroutines\tsupervisor\tfiles in the state directory\tmounts\n")
	show := func(rounds int, l left) {
		fmt.Fprintf(table, "%d\t%v\t%d\t%v\t%d\t%d\n", rounds, l.worker, l.goroutines, l.supervisor, l.files, l.mounts)
	}
	defer table.Flush()
	for i := range o.rounds {
		if err := h.round(names[i%len(names)]); err != nil {
			return fmt.Errorf("round %d: %w", i+1, err)
		}
		if n := i + 1; n == o.warm || n > o.warm && n%max(1, o.rounds/5) == 0 || n == o.rounds {
			l, err := h.left(socket)
			if err != nil {
				return err
			}
			show(n, l)
		}
	}
	return nil
}

// round mounts a repository, reads a directory, writes a file and unmounts. It deletes the session, which would
// otherwise remain on disk.
func (h *host) round(name string) error {
	dir, _, err := h.mount(name)
	if err != nil {
		return err
	}
	entries, err := filepath.Glob(filepath.Join(dir, "part0", "module00", "group0", "*"))
	if err != nil || len(entries) == 0 {
		return fmt.Errorf("list files: %d entries: %w", len(entries), err)
	}
	for _, path := range entries {
		if _, err := os.ReadFile(path); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "new"), []byte("new\n"), 0o644); err != nil {
		return err
	}
	out, err := h.command("unmount", dir, "--discard", "--yes").CombinedOutput()
	if err != nil {
		return fmt.Errorf("unmount: %w: %s", err, out)
	}
	return nil
}

// left measures the memory, goroutines, files and mounts that exist now.
func (h *host) left(socket string) (left, error) {
	l := left{worker: weigh(h.victim.Worker()), supervisor: weigh(h.victim.Supervisor())}
	var err error
	if l.goroutines, err = goroutines(socket); err != nil {
		return l, err
	}
	filepath.WalkDir(h.state, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			l.files++
		}
		return nil
	})
	table, err := os.ReadFile("/proc/self/mounts")
	l.mounts = strings.Count(string(table), " "+h.work+"/")
	return l, err
}

// goroutines returns the number of goroutines of the worker, which it reads from the worker's profile at the socket.
func goroutines(socket string) (int, error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}}}
	r, err := client.Get("http://artifactfs/debug/pprof/goroutine?debug=1")
	if err != nil {
		return 0, fmt.Errorf("count goroutines: %w", err)
	}
	defer r.Body.Close()
	line, err := bufio.NewReader(r.Body).ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("count goroutines: %w", err)
	}
	var n int
	if _, err := fmt.Sscanf(line, "goroutine profile: total %d", &n); err != nil {
		return 0, fmt.Errorf("count goroutines: %q: %w", line, err)
	}
	return n, nil
}
