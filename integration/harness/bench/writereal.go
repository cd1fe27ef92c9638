package main

import (
	"errors"
	"os"
	"path/filepath"
)

// tree measures how long it takes to copy, pack and unpack a real source tree.
func (a *arena) tree() error {
	source, tar := a.path("source"), a.path("tar")
	if _, err := a.git("clone", "-q", "--depth", "1", a.url, source); err != nil {
		return err
	}
	defer os.RemoveAll(source)
	if err := errors.Join(os.RemoveAll(filepath.Join(source, ".git")), shellIn(source, "tar cf "+tar+" .")); err != nil {
		return err
	}
	defer os.Remove(tar)
	gone := func(dir string) error { return shellIn(dir, "rm -rf copy") }
	made := func(dir string) error { return errors.Join(gone(dir), os.Mkdir(filepath.Join(dir, "copy"), 0o755)) }
	name := func(what string) string { return what + " of " + a.name }
	return errors.Join(
		a.compare(name("cp -r into it"), a.o.rounds, gone,
			func(dir string) error { return shellIn(dir, "cp -r "+source+" copy") }),
		a.compare(name("cp -r inside"), 1, func(dir string) error { return shellIn(dir, "rm -rf copy2") },
			func(dir string) error { return shellIn(dir, "cp -r copy copy2") }),
		a.compare(name("tar x"), a.o.rounds, made, func(dir string) error { return shellIn(dir, "tar xf "+tar+" -C copy") }),
		a.compare(name("grep -r, warm"), a.o.rounds, nil,
			func(dir string) error { return shellIn(dir, "grep -rc unlikely-to-be-found copy >/dev/null; true") }),
		a.compare(name("sed -i of every file"), 1, nil,
			func(dir string) error { return shellIn(dir, "find copy -type f -exec sed -i s/e/E/ {} +") }),
		a.compare(name("git init, add, commit"), 1, nil, func(dir string) error {
			return shellIn(filepath.Join(dir, "copy"),
				"git init -q && git add -A && git -c user.name=b -c user.email=b@example.invalid commit -qm all")
		}),
		a.compare(name("git status"), a.o.rounds, nil,
			func(dir string) error { return shellIn(filepath.Join(dir, "copy"), "git status --porcelain") }),
		a.compare(name("mv"), 1, nil, func(dir string) error { return shellIn(dir, "mv copy moved") }),
		a.compare(name("rm -rf"), 1, nil, func(dir string) error { return shellIn(dir, "rm -rf moved") }),
		a.compare(name("rm -rf of the base's files"), 1, nil, func(dir string) error {
			return shellIn(dir, "ls -A | grep -v '^[.]git$' | xargs -d '\\n' rm -rf")
		}),
	)
}

// npmInstall measures the installation of a project from npm's cache. It runs no install scripts, because their
// duration depends on the packages.
func (a *arena) npmInstall() error {
	if a.o.npm == "" {
		return nil
	}
	what := "npm ci, warm cache"
	if a.redirect != "" {
		what += ", node_modules redirected"
	}
	fresh := func(dir string) error {
		return shellIn(dir, "mkdir -p project/node_modules && find project/node_modules -mindepth 1 -delete && cp "+
			filepath.Join(a.o.npm, "package.json")+" "+filepath.Join(a.o.npm, "package-lock.json")+" project/")
	}
	install := func(dir string) error {
		return shellIn(filepath.Join(dir, "project"),
			"npm ci --offline --ignore-scripts --no-audit --no-fund --loglevel=error --cache "+a.o.npmHome)
	}
	return errors.Join(
		a.compare(what, a.o.rounds, fresh, install),
		a.compare("  find node_modules", a.o.rounds, nil,
			func(dir string) error { return shellIn(dir, "find project/node_modules -size +0 >/dev/null") }),
		// the directory node_modules is kept, because it may be a mount point
		a.compare("  remove all in node_modules", 1, nil,
			func(dir string) error { return shellIn(dir, "find project/node_modules -mindepth 1 -delete") }),
	)
}

// goBuild measures a build of a Go module without a build cache, and a second build with it. First the build cache is
// outside of the tree, as it is by default. Then the cache is inside the tree, so that every object is a file of the
// mount.
func (a *arena) goBuild() error {
	if a.o.module == "" {
		return nil
	}
	build := func(cache func(dir string) string) func(dir string) error {
		return func(dir string) error {
			return shellIn(dir, "go build ./...", "GOCACHE="+cache(dir), "GOFLAGS=-buildvcs=false", "GOTOOLCHAIN=local")
		}
	}
	outside := func(dir string) string { return a.plain + "-cache-" + filepath.Base(dir) }
	inside := func(dir string) string { return filepath.Join(dir, ".gocache") }
	empty := func(cache func(dir string) string) func(dir string) error {
		return func(dir string) error { return shellIn(dir, "rm -rf "+cache(dir)) }
	}
	defer func() {
		os.RemoveAll(outside(a.plain))
		os.RemoveAll(outside(a.m.dir))
	}()
	err := shellIn(a.plain, "go mod download") // download first, so that the network is not measured
	if err == nil && a.redirect == "" {
		err = errors.Join(
			a.compare("go build ./..., cache outside", 1, empty(outside), build(outside)),
			a.compare("  again, nothing to do", a.o.rounds, nil, build(outside)),
		)
	}
	what := "go build ./..., cache in the tree"
	if a.redirect != "" {
		what += ", redirected"
	}
	return errors.Join(err,
		a.compare(what, 1, empty(inside), build(inside)),
		a.compare("  again, nothing to do", a.o.rounds, nil, build(inside)),
	)
}
