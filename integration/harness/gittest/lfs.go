package gittest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
)

// LFS is a git-lfs server on the loopback interface with the batch API and its basic transfers in both directions
// (github.com/git-lfs/git-lfs, docs/api/batch.md). It stores contents in memory.
type LFS struct {
	server *http.Server
	url    string

	mu      sync.Mutex
	objects map[string][]byte // contents by their SHA-256 hash
	stats   LFSStats
	down    bool
}

// LFSStats counts the requests to the server.
type LFSStats struct {
	Batches   int // number of requests to the batch API
	Largest   int // maximum number of objects in one batch
	Downloads int
	Uploads   int
}

// ServeLFS starts a server that stores no contents yet.
func ServeLFS() (*LFS, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("serve lfs: %w", err)
	}
	s := &LFS{url: "http://" + l.Addr().String(), objects: map[string][]byte{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /objects/batch", s.batch)
	mux.HandleFunc("GET /o/{oid}", s.download)
	mux.HandleFunc("PUT /o/{oid}", s.upload)
	s.server = &http.Server{Handler: mux}
	go s.server.Serve(l)
	return s, nil
}

// Close ends the server and closes its connections.
func (s *LFS) Close() error { return s.server.Close() }

// URL returns the value for the setting lfs.url.
func (s *LFS) URL() string { return s.url }

// Add stores contents and returns the git-lfs pointer file that represents them in a repository.
func (s *LFS) Add(content []byte) (pointer []byte) {
	sum := sha256.Sum256(content)
	oid := hex.EncodeToString(sum[:])
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[oid] = content
	return fmt.Appendf(nil, "version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n", oid, len(content))
}

// Has reports whether the server stores the given contents.
func (s *LFS) Has(content []byte) bool {
	sum := sha256.Sum256(content)
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.objects[hex.EncodeToString(sum[:])]
	return ok
}

// Stats returns the numbers of requests since the start or the last call of Reset.
func (s *LFS) Stats() LFSStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// Reset sets the numbers of requests to zero.
func (s *LFS) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats = LFSStats{}
}

// Down makes the server refuse all requests if down is true, and answer them again if down is false.
func (s *LFS) Down(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

func (s *LFS) batch(w http.ResponseWriter, r *http.Request) {
	type action struct {
		Href string `json:"href"`
	}
	type object struct {
		OID     string            `json:"oid"`
		Size    int64             `json:"size"`
		Actions map[string]action `json:"actions,omitempty"`
		Error   map[string]any    `json:"error,omitempty"`
	}
	var ask struct {
		Operation string   `json:"operation"`
		Objects   []object `json:"objects"`
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := json.NewDecoder(r.Body).Decode(&ask); err != nil || s.down {
		http.Error(w, "{}", http.StatusForbidden) // git-lfs does not try again after this status
		return
	}
	s.stats.Batches++
	s.stats.Largest = max(s.stats.Largest, len(ask.Objects))
	for i := range ask.Objects {
		o := &ask.Objects[i]
		href := action{"http://" + r.Host + "/o/" + o.OID}
		_, have := s.objects[o.OID]
		switch {
		case ask.Operation == "upload" && !have:
			o.Actions = map[string]action{"upload": href}
		case ask.Operation == "download" && have:
			o.Actions = map[string]action{"download": href}
		case ask.Operation == "download":
			o.Error = map[string]any{"code": 404, "message": "no such object"}
		}
	}
	w.Header().Set("Content-Type", "application/vnd.git-lfs+json")
	json.NewEncoder(w).Encode(map[string]any{"transfer": "basic", "objects": ask.Objects})
}

func (s *LFS) download(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	content, ok := s.objects[r.PathValue("oid")]
	s.stats.Downloads++
	s.mu.Unlock()
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Write(content)
}

func (s *LFS) upload(w http.ResponseWriter, r *http.Request) {
	content, err := io.ReadAll(r.Body)
	sum := sha256.Sum256(content)
	if oid := hex.EncodeToString(sum[:]); err != nil || !strings.EqualFold(oid, r.PathValue("oid")) {
		http.Error(w, "not what was announced", http.StatusBadRequest)
		return
	}
	s.Add(content)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Uploads++
}
