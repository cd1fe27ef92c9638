package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// packs reads single files one after the other, and then counts the packs that this has created for git.
func (g *gitBench) packs() (err error) {
	clone := g.path("clone")
	took, err := g.run("", nil, "clone", "-q", "--no-local", g.repo, clone)
	if err != nil {
		return err
	}
	defer os.RemoveAll(clone)
	m, err := g.fresh("full")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.gone()) }()
	fmt.Fprintf(g.table, "%d reads\tmount\tclone\tratio\tnetwork of the mount\tpacks of the mount\tpacks of the clone\n", min(g.o.reads, len(g.files)))
	row := func(what string, ours cost, theirs time.Duration) error {
		n, err := packFiles(g.session.state)
		if err != nil {
			return err
		}
		c, err := packFiles(clone)
		fmt.Fprintf(g.table, "%s\t%s\t%s\t%.2fx\t%s\t%d\t%d\n", what, seconds(ours.took), seconds(theirs), float64(ours.took)/float64(theirs), ours.network(), n, c)
		return err
	}
	if err := row("mount, clone", cost{took: m.took}, took.took); err != nil {
		return err
	}
	files := spread(g.files, g.o.reads)
	g.server.Log().Reset()
	var ours cost
	var theirs time.Duration
	for _, side := range []struct {
		dir  string
		took *time.Duration
	}{{m.dir, &ours.took}, {clone, &theirs}} {
		start := time.Now()
		for _, f := range files {
			if _, err := os.ReadFile(filepath.Join(side.dir, f)); err != nil {
				return err
			}
		}
		*side.took = time.Since(start)
	}
	for _, r := range g.server.Log().Fetches() {
		ours.requests++
		ours.objects += r.Objects
	}
	if err := row("reads one after the other", ours, theirs); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"status", "--porcelain"}, {"status", "--porcelain"}, {"log", "-1000", "--format=%H %s"}, {"log", "-5", "-p"},
		{"count-objects", "-v"}, {"gc", "-q"}, {"status", "--porcelain"}, {"log", "-1000", "--format=%H %s"}, {"fsck", "--connectivity-only"},
	} {
		ours, err := g.run(m.dir, nil, args...)
		if err != nil {
			return err
		}
		theirs, err := g.run(clone, nil, args...)
		if err != nil {
			return err
		}
		if err := row("git "+strings.Join(args, " "), ours, theirs.took); err != nil {
			return err
		}
	}
	return nil
}

// packFiles counts the packs below a directory, at any depth.
func packFiles(dir string) (n int, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a join has removed the file
		}
		if err == nil && strings.HasSuffix(path, ".pack") && filepath.Base(filepath.Dir(path)) == "pack" {
			n++
		}
		return err
	})
	return n, err
}
