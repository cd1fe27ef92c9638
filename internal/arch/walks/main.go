// Walks shows the walk of an operation, which is the set of functions, files and packages of this program that one
// operation enters, in the command and in the daemon.
//
//	go run ./internal/arch/walks [-dir DIR] [-v] [OPERATION...]
//
// It builds a copy of the tree with coverage counters, and mounts a small repository from a git server on loopback,
// with a session remote. Each operation runs once to warm up, and then three times: read (of an unread file), write (to
// a file that was read), commit and checkpoint (with their pushes to the session remote), restore (of a checkpoint,
// after which another was made) and fork (of a session). The counters are set to zero before each run. A run is
// complete when the daemon has entered nothing but its background work for some seconds.
//
// Background work is left out: functions that the daemon enters repeatedly in an idle interval, which is as long as a
// run may take, and functions that every command enters, found by running "artifactfs version". Automatic checkpoints
// and prefetch are off. A function that belongs to both the background work and the operation is therefore missing from
// the walk.
//
// The table counts the functions that were entered in all three runs. With -v, each walk is printed: packages before
// those that they import, and the functions of a package in the order of its source.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

const runs = 3 // measured runs of each operation

func main() {
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "usage: walks [flags] [OPERATION...], of %s\n\n"+
			"Functions that the daemon enters repeatedly in an idle interval, and those that every command enters, do\n"+
			"not count.\n\n",
			strings.Join(operationNames(), ", "))
		flag.PrintDefaults()
	}
	dir := flag.String("dir", ".", "root of the tree to measure; it may be that of an older commit")
	verbose := flag.Bool("v", false, "print each walk")
	idle := flag.Duration("idle", 30*time.Second, "`length` of the idle interval, and of the longest run of an operation")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *dir, flag.Args(), *idle, *verbose); err != nil {
		fmt.Fprintf(os.Stderr, "walks: %v\n", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string, names []string, idle time.Duration, verbose bool) (err error) {
	chosen, err := choose(names)
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "walks")
	if err != nil {
		return err
	}
	r := &rig{ctx: ctx, tmp: tmp, idle: idle, mnt: filepath.Join(tmp, "mnt"), state: filepath.Join(tmp, "state"),
		background: byRole{}}
	defer func() {
		if ended := r.end(); ended != nil {
			err = errors.Join(err, fmt.Errorf("clean up %s: %w", tmp, ended))
		}
	}()
	progress("building with counters")
	order, err := r.build(dir)
	if err != nil {
		return err
	}
	if err := r.start(); err != nil {
		return err
	}
	walks, err := r.measure(chosen)
	if err != nil {
		return err
	}
	printTable(chosen, walks)
	if verbose {
		for _, op := range chosen {
			printWalk(op, common(walks[op.name]), order)
		}
	}
	return nil
}

// choose returns the operations with the given names, or all operations if no name is given.
func choose(names []string) ([]operation, error) {
	if len(names) == 0 {
		return operations, nil
	}
	var chosen []operation
	for _, name := range names {
		at := slices.Index(operationNames(), name)
		if at < 0 {
			return nil, fmt.Errorf("unknown operation %q, must be one of %s", name, strings.Join(operationNames(), ", "))
		}
		chosen = append(chosen, operations[at])
	}
	return chosen, nil
}

// progress prints a line to stderr that states the next step.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "walks: "+format+"\n", args...)
}

// printTable prints a table with the figures of each operation.
func printTable(chosen []operation, walks map[string][]byRole) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "operation\tfunctions\tfiles\tpackages\tin the command\tin the daemon\tfunctions of each run\t")
	for _, op := range chosen {
		var each []string
		for _, one := range walks[op.name] {
			each = append(each, fmt.Sprint(len(one.all())))
		}
		got := common(walks[op.name])
		all := got.all()
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%s\t\n", op.name, len(all), len(all.files()), len(all.packages()),
			len(got[command]), len(got[daemon]), strings.Join(each, " "))
	}
	w.Flush()
}

// printWalk prints the functions of one operation by role, package and file. Packages are printed in the given order.
func printWalk(op operation, got byRole, order []string) {
	fmt.Printf("\n%s: %s\n", op.name, op.what)
	for _, role := range []string{command, daemon} {
		if len(got[role]) == 0 {
			continue
		}
		fmt.Printf("  %s\n", role)
		last := function{}
		for _, f := range got[role].sorted(order) {
			if f.dir != last.dir {
				fmt.Printf("    %s\n", f.dir)
			}
			if f.dir != last.dir || f.file != last.file {
				fmt.Printf("      %s\n", f.file)
			}
			fmt.Printf("        %s\n", f.name)
			last = f
		}
	}
}
