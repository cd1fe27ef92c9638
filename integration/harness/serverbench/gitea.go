package main

import (
	"context"
	"fmt"
	"net"

	"github.com/artifactfs/artifactfs/integration/harness/gitea"
)

// forge is a gitea server as a place of measurements.
type forge struct {
	*gitea.Server
	forks int
}

func startForge(ctx context.Context, source, data string) (*forge, error) {
	s, err := gitea.Start(ctx, source, data)
	return &forge{Server: s}, err
}

func (g *forge) name() string { return "gitea" }
func (g *forge) pid() int     { return g.PID() }
func (g *forge) dir() string  { return g.Dir }
func (g *forge) end() error   { return g.Close() }

func (g *forge) create(ctx context.Context, name string) (remote, error) {
	return g.remote(gitea.User, name), g.Create(ctx, name)
}

// fork forks a repository into the organization that prepareFork has created. Each fork needs a new organization,
// because gitea allows one fork of a repository for each owner.
func (g *forge) fork(ctx context.Context, from, to string) (remote, error) {
	owner := g.owner()
	err := g.Post(ctx, "/api/v1/repos/"+gitea.User+"/"+from+"/forks", map[string]string{"organization": owner, "name": to})
	return g.remote(owner, to), err
}

// prepareFork creates the organization for the next fork.
func (g *forge) prepareFork(ctx context.Context) error {
	g.forks++
	return g.Post(ctx, "/api/v1/orgs", map[string]string{"username": g.owner()})
}

// owner returns the name of the organization of the newest fork.
func (g *forge) owner() string { return fmt.Sprint("group", g.forks) }

func (g *forge) remote(owner, name string) remote {
	return remote{url: g.Repo(owner, name), header: basic(gitea.User, g.Token), token: g.Token}
}

// freeAddress returns an address of the loopback interface at which no process listens.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
