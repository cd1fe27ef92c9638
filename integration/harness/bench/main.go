// Command bench measures artifactfs and the tools that a user would use instead, side by side in one run, and prints a
// table. Every repository is served by real git over HTTP on the loopback interface with a delay.
//
//	go run ./integration/harness/bench [-rtt 50ms] [-only REGEXP] [REPOSITORY.git ...]
//	go run ./integration/harness/bench -write [-places NAME=DIR,...] [-only REGEXP] [REPOSITORY.git ...]
//	go run ./integration/harness/bench -git [-git2 PROGRAM] [-only REGEXP] [REPOSITORY.git ...]
//	go run ./integration/harness/bench -takeover [-kills N] [REPOSITORY.git]
//	go run ./integration/harness/bench -session [-kills N] [-kinds LIST] [-outage DURATION] [-crowd N] [-crowd-for DURATION]
//	    [-forge DIR] [-only REGEXP] [REPOSITORY.git ...]
//	go run ./integration/harness/bench -many | -leak | -fleet
//
// With -write it compares a mount with a plain directory, and with -git it compares git in a mount with git in clones.
// -takeover kills the worker of a mount while programs use the mount. -session pushes changes to session remotes and
// resumes sessions from there. -many measures the memory of hundreds of mounts, and -leak mounts a thousand times.
// -fleet measures a hundred daemons with ten mounts each.
//
// Without the argument REPOSITORY it creates three repositories. It needs root or fusermount3, and bin/artifactfs and
// bin/gitserve, which `make bench` builds. Times vary on a small machine; the numbers of requests and blobs are exact.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/daemons"
	"github.com/artifactfs/artifactfs/integration/harness/torture"
	"github.com/artifactfs/artifactfs/integration/harness/workday"
)

func main() {
	torture.Main()
	workday.Main()
	log.SetFlags(0)
	log.SetPrefix("bench: ")
	rtt := flag.Duration("rtt", 50*time.Millisecond, "round-trip time of the served repositories")
	only := flag.String("only", "", "run the measurements whose name matches")
	bin := flag.String("bin", "bin", "directory of artifactfs and gitserve")
	full := flag.Bool("full-clone", false, "also time a full git clone of each repository")
	keep := flag.Bool("keep", false, "keep all files if a measurement fails")
	o, isWrite := writeFlags()
	g, isGit := gitFlags()
	t, isTakeover := takeoverFlags()
	c, isCarry := carryFlags()
	m, isMany := manyFlags()
	l, isLeak := leakFlags()
	fl, isFleet := fleetFlags()
	n, isRelay := relayFlags()
	flag.Parse()
	match, err := regexp.Compile(*only)
	check(err)
	work, err := os.MkdirTemp("", "artifactfs-bench-*")
	check(err)
	code := 0
	defer func() {
		ending.Lock()
		if err := daemons.End(work); err != nil {
			log.Print(err)
			code = 1
		}
		if code == 0 || !*keep {
			os.RemoveAll(work)
		}
		os.Exit(code)
	}()
	binDir, err := filepath.Abs(*bin)
	check(err)
	check(os.Setenv("TMPDIR", work)) // temporary files of servers are then removed together with the work directory
	endWhenInterrupted(work)
	repos := flag.Args()
	if *isWrite {
		b := &bench{work: work, bin: binDir}
		if err := b.writes(repos, o.parsed(match)); err != nil {
			log.Print(err)
			code = 1
		}
		return
	}
	b := &bench{work: work, bin: binDir, rtt: *rtt}
	for _, mode := range []struct {
		is  bool
		run func() error
	}{
		{*isTakeover, func() error { return b.takeovers(repos, *t) }},
		{*isCarry, func() error {
			c.only, c.kills, c.seed, c.repos = match, t.kills, t.seed, repos
			return b.carries(*c)
		}},
		{*isMany, func() error { return b.manies(*m) }},
		{*isRelay, func() error { n.only = match; return b.relays(repos, *n) }},
		{*isLeak, func() error { return b.leaks(*l, *m) }},
		{*isFleet, func() error { return b.fleets(*fl) }},
	} {
		if !mode.is {
			continue
		}
		if err := mode.run(); err != nil {
			log.Print(err)
			code = 1
		}
		return
	}
	if len(repos) == 0 {
		repos = makeRepositories(work)
	}
	if *isGit {
		g.only = match
		if err := b.gits(repos, *g); err != nil {
			log.Print(err)
			code = 1
		}
		return
	}
	b.fullClone, b.table = *full, tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)
	fmt.Fprintf(b.table, "measurement\trepository\tartifactfs\tinstead\tratio\tnotes\n")
	for _, repo := range repos {
		if err := b.run(repo, match); err != nil {
			log.Printf("%s: %v", repo, err)
			code = 1
		}
		b.table.Flush()
	}
}

// run runs all measurements of one repository whose names match the regular expression.
func (b *bench) run(repo string, match *regexp.Regexp) error {
	s, err := b.serve(repo)
	if err != nil {
		return err
	}
	defer s.stop()
	for _, m := range []struct {
		name string
		run  func(*session) error
	}{
		{"cold-start", (*session).coldStart},
		{"one-blob", (*session).oneBlob},
		{"laziness", (*session).laziness},
		{"grep", (*session).coldGrep},
		{"read-while-hydrating", (*session).readWhileHydrating},
		{"warm", (*session).warm},
		{"history", (*session).history},
	} {
		if !match.MatchString(m.name) {
			continue
		}
		if err := m.run(s); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		b.table.Flush()
	}
	return nil
}

// row prints one row of the table. The ratio is theirs divided by ours.
func (s *session) row(what string, ours, theirs time.Duration, instead, notes string) {
	ratio := "-"
	if theirs > 0 {
		ratio = fmt.Sprintf("%.1fx", float64(theirs)/float64(ours))
		instead = fmt.Sprintf("%s (%s)", seconds(theirs), instead)
	}
	fmt.Fprintf(s.table, "%s\t%s\t%s\t%s\t%s\t%s\n", what, s.name, seconds(ours), instead, ratio, notes)
}

// count prints a row of the table whose result is not a duration.
func (s *session) count(what, result, notes string) {
	fmt.Fprintf(s.table, "%s\t%s\t%s\t\t\t%s\n", what, s.name, result, notes)
}

func seconds(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}

func repoName(path string) string {
	return strings.TrimSuffix(filepath.Base(strings.TrimSuffix(path, "/")), ".git")
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
