// Command serverbench compares artifactfs serve with gitea and with plain git http-backend on the same machine, with
// the same repositories, in one run. It prints a table with the ratios and the load average beside each row.
//
//	go run ./integration/harness/serverbench [-gitea DIR] [-large REPOSITORY.git] [-only REGEXP] [REPOSITORY.git ...]
//
// The measurements clone and push the repositories that are passed as arguments, and fork and mount the repository of
// the flag -large. The flag -gitea names a directory that contains gitea's source and the program gitea built from it;
// without this flag, gitea is not measured. git http-backend has no API, so its repositories are created by git init
// and forked by git clone.
//
// The program needs bin/artifactfs, which `make bench` builds, and root or fusermount3 for the mounts.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/artifactfs/artifactfs/integration/harness/daemons"
)

// options holds the values of the command-line flags.
type options struct {
	bin      string
	gitea    string
	large    string
	only     *regexp.Regexp
	rounds   int
	crowd    int
	rest     int
	pushed   int
	sessions int
	archived int
	every    int
	serve    string
	repos    []string
}

// bench is one run of the measurements.
type bench struct {
	options
	ctx    context.Context // ends when the run is interrupted
	work   string
	table  *table
	ours   *ours
	places []place           // ours first, http-backend last
	based  map[string]remote // the large repository in each place where it was pushed to
	states int               // number of state directories that mounted has used
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("serverbench: ")
	b := &bench{table: &table{}, based: map[string]remote{}}
	flag.StringVar(&b.bin, "bin", "bin", "directory that contains the program artifactfs")
	flag.StringVar(&b.gitea, "gitea", "", "`source` directory of gitea that contains the built program gitea")
	flag.StringVar(&b.large, "large", "",
		"bare repository for forks and mounts; \"\": a generated one with 110,000 files and few commits")
	only := flag.String("only", "",
		"run the measurements whose name matches (create|clone|push|checkpoint|crowd|fork|mount|rest|sessions|archive)")
	flag.IntVar(&b.rounds, "rounds", 20, "number of repetitions of short measurements")
	flag.IntVar(&b.crowd, "crowd", 100, "number of simultaneous pushes, each to a different repository")
	flag.IntVar(&b.rest, "rest", 10_000, "number of idle repositories")
	flag.IntVar(&b.pushed, "pushed", 1000, "number of idle repositories that have received a push")
	flag.IntVar(&b.sessions, "sessions", 1000, "number of sessions that are created and mounted one after the other")
	flag.IntVar(&b.archived, "archived", 10_000, "number of sessions that are archived")
	flag.IntVar(&b.every, "every", 1, "mount only each N-th thin session; stock git pushes to the others")
	flag.StringVar(&b.serve, "serve", "",
		"further flags of artifactfs serve, separated by spaces, such as -database and -objects")
	flag.Parse()
	b.repos = flag.Args()
	var err error
	if b.only, err = regexp.Compile(*only); err == nil {
		b.bin, err = filepath.Abs(b.bin)
	}
	if err != nil {
		log.Fatal(err)
	}
	if b.work, err = os.MkdirTemp("", "serverbench-*"); err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b.ctx = ctx
	err = b.run()
	b.end()
	removeAll(b.work)
	if err != nil {
		log.Fatal(err)
	}
}

// removeAll removes a directory. It does not if something is mounted below it, because that would remove the mount's
// files.
func removeAll(dir string) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil || strings.Contains(string(mounts), " "+dir+"/") {
		log.Printf("left %s, because something is mounted there", dir)
		return
	}
	os.RemoveAll(dir)
}

// run starts the servers and makes the measurements.
func (b *bench) run() error {
	if err := b.prepare(); err != nil {
		return err
	}
	if err := b.start(); err != nil {
		return err
	}
	var names []string
	for _, p := range b.places {
		names = append(names, p.name())
	}
	b.table.head(names)
	for _, m := range []struct {
		name string
		run  func() error
	}{
		{"create", b.create},
		{"clone", b.clone},
		{"push", b.push},
		{"checkpoint", b.checkpoint},
		{"crowd", b.pushes},
		{"fork", b.fork},
		{"mount", b.mount},
		{"rest", b.atRest},
		{"sessions", b.manySessions},
		{"archive", b.dormant},
	} {
		if !b.only.MatchString(m.name) {
			continue
		}
		if err := m.run(); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	return nil
}

// start starts the servers.
func (b *bench) start() error {
	var err error
	if b.ours, err = startOurs(b.ctx, filepath.Join(b.bin, "artifactfs"), b.path("ours"),
		strings.Fields(b.serve)...); err != nil {
		return err
	}
	b.places = append(b.places, b.ours)
	if b.gitea == "" {
		log.Print("no column for gitea: -gitea names its source directory with the program gitea built in it")
	} else {
		g, err := startForge(b.ctx, b.gitea, b.path("gitea"))
		if err != nil {
			return err
		}
		b.places = append(b.places, g)
	}
	p, err := startPlain(b.path("plain"))
	if err != nil {
		return err
	}
	b.places = append(b.places, p)
	return nil
}

// end ends the daemons, with what a failed measurement has left mounted, and then the servers that they push to.
func (b *bench) end() {
	if err := daemons.End(b.work); err != nil {
		log.Print(err)
	}
	for _, p := range b.places {
		if err := p.end(); err != nil {
			log.Printf("end %s: %v", p.name(), err)
		}
	}
}

// path returns a path in the work directory.
func (b *bench) path(parts ...string) string {
	return filepath.Join(append([]string{b.work}, parts...)...)
}
