package client_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/exec"

	"github.com/artifactfs/artifactfs/server/client"
)

// This example creates a fork of a repository and a token for a sandbox, runs an agent in the sandbox, and lists the
// branches that the agent has pushed.
func Example() {
	ctx := context.Background()
	c, err := client.New(client.Options{URL: "http://127.0.0.1:8790", Token: os.Getenv("ARTIFACTFS_SERVER_TOKEN")})
	if err != nil {
		log.Fatal(err)
	}
	fork, err := c.Fork(ctx, "team", "app", client.Fork{Name: "agent-7", DefaultBranchOnly: true})
	if err != nil {
		log.Fatal(err)
	}
	token, err := c.CreateToken(ctx, "team", client.CreateToken{Repo: fork.Name, TTL: 3600, Label: "agent 7"})
	if err != nil {
		log.Fatal(err)
	}
	run := exec.Command("artifactfs", "run", fork.Remote, "--session", "agent-7", "--session-remote", "origin",
		"--", "./agent")
	run.Env = append(os.Environ(), "ARTIFACTFS_TOKEN="+token.Plaintext)
	if err := run.Run(); err != nil {
		log.Fatal(err)
	}
	for ref, err := range c.Extensions().Refs(ctx, "team", fork.Name, "refs/heads/") {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(ref.Name, ref.Hash)
	}
}
