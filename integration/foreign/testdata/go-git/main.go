// A small command line for go-git: clone, commit, push and fetch. The tests describe its arguments (suite_test.go). It
// is a module of its own, because the project does not need the dependencies of go-git's commands.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/plumbing/transport/http"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	var auth transport.AuthMethod
	switch os.Getenv("AFS_AUTH") {
	case "basic":
		auth = &http.BasicAuth{Username: "x", Password: os.Getenv("AFS_TOKEN")}
	case "bearer":
		auth = &http.TokenAuth{Token: os.Getenv("AFS_TOKEN")}
	}
	if args[0] == "clone" {
		o := &git.CloneOptions{URL: args[1], Auth: auth}
		if len(args) > 3 {
			o.SingleBranch = true
			var err error
			if o.Depth, err = strconv.Atoi(args[3]); err != nil {
				return err
			}
		}
		_, err := git.PlainClone(args[2], false, o)
		return err
	}
	r, err := git.PlainOpen(args[1])
	if err != nil {
		return err
	}
	switch args[0] {
	case "commit":
		return commit(r, args[1], args[2], args[3])
	case "push":
		source, force := args[2], ""
		if source != "" {
			source = "refs/heads/" + source
		}
		if len(args) > 4 {
			force = "+"
		}
		spec := config.RefSpec(fmt.Sprintf("%s%s:refs/heads/%s", force, source, args[3]))
		return r.Push(&git.PushOptions{RemoteName: "origin", RefSpecs: []config.RefSpec{spec}, Auth: auth})
	default:
		if err := r.Fetch(&git.FetchOptions{RemoteName: "origin", Auth: auth}); err != nil &&
			!errors.Is(err, git.NoErrAlreadyUpToDate) {
			return err
		}
		ref, err := r.Reference("refs/remotes/origin/main", true)
		if err != nil {
			return err
		}
		fmt.Println(ref.Hash())
		return nil
	}
}

func commit(r *git.Repository, dir, name, text string) error {
	w, err := r.Worktree()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		return err
	}
	if _, err := w.Add(name); err != nil {
		return err
	}
	who := &object.Signature{Name: "foreign", Email: "foreign@localhost", When: time.Now()}
	id, err := w.Commit("change "+name+"\n", &git.CommitOptions{Author: who, Committer: who})
	if err != nil {
		return err
	}
	fmt.Println(id)
	return nil
}
