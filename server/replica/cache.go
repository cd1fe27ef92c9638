package replica

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/records"
)

// cache contains the packs that were copied from a shared object store to this host. All replicas that list a pack,
// such as those of forks, share one copy by hard links. If the cache is larger than its limit, packs that no replica
// uses are removed.
type cache struct {
	dir   string
	store objects.Store
	most  int64 // maximum size of all packs in bytes

	mu    sync.Mutex
	packs map[string]*cachedPack // packs by ID
	idle  list.List              // packs without holders; the one that was released last is in front
	bytes int64
}

// cachedPack is a pack in the cache, whose files may still be missing.
type cachedPack struct {
	id   string
	turn chan struct{} // semaphore of capacity 1: a goroutine that changes the files puts an element into it
	// whether all files exist and are undamaged; only the goroutine that holds turn may use this field
	ready bool

	// cache.mu guards these fields.
	holders int // number of replicas and calls that need the files
	bytes   int64
	element *list.Element // element of cache.idle; nil if there are holders
}

// openCache returns the cache in the directory dir. Packs of an earlier process are checked before they are used,
// because a power cut may have damaged them.
func openCache(dir string, store objects.Store, most int64) (*cache, error) {
	c := &cache{dir: dir, store: store, most: most, packs: map[string]*cachedPack{}}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path == dir {
			return fs.SkipAll
		}
		if err != nil || d.IsDir() {
			return err
		}
		if strings.HasSuffix(path, ".tmp") {
			return os.Remove(path)
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		id, _, _ := strings.Cut(d.Name(), ".")
		p := c.place(id)
		p.bytes += info.Size()
		c.bytes += info.Size()
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("open cache of packs: %w", err)
	}
	for _, p := range c.packs {
		p.element = c.idle.PushFront(p)
	}
	c.trim()
	return c, nil
}

// place returns the entry of the pack with this ID, and adds one if the cache has none. The caller holds mu, except
// openCache.
func (c *cache) place(id string) *cachedPack {
	p := c.packs[id]
	if p == nil {
		p = &cachedPack{id: id, turn: make(chan struct{}, 1)}
		c.packs[id] = p
	}
	return p
}

// path returns the path of a file of a pack without its extension.
func (c *cache) path(id string) string { return filepath.Join(c.dir, id[max(0, len(id)-2):], id) }

// link makes a replica a holder of a pack, and links the files of the pack into the directory dir. If complete is true,
// git has already put the files into dir; then the cache links these files, unless it has the pack.
func (c *cache) link(ctx context.Context, format object.Format, pack records.Pack, dir string,
	complete bool) (err error) {
	p := c.hold(pack.ID)
	defer func() {
		if err != nil {
			c.release(pack.ID)
			err = fmt.Errorf("add pack %s: %w", pack.ID, err)
		}
	}()
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	base, to := c.path(pack.ID), filepath.Join(dir, "pack-"+pack.Hash)
	if !p.ready {
		if err := os.MkdirAll(filepath.Dir(base), 0o700); err != nil {
			return objects.Classify(err)
		}
		if complete {
			err = adopt(pack, to, base)
		} else {
			err = c.fill(ctx, format, pack, base)
		}
		if err != nil {
			return objects.Classify(err)
		}
		c.measure(p, pack)
		p.ready = true
	}
	if complete {
		return nil
	}
	for _, x := range pack.Extensions {
		if x != ".idx" {
			err = errors.Join(err, linkOrCopy(base+x, to+x))
		}
	}
	if err == nil {
		err = linkOrCopy(base+".idx", to+".idx") // the index is linked last, because git finds a pack by its index
	}
	return objects.Classify(err)
}

// adopt links the files of a pack in the directory from to the cache.
func adopt(pack records.Pack, from, base string) error {
	for _, x := range pack.Extensions {
		if err := linkOrCopy(from+x, base+x); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// fill downloads the files of a pack that are missing or damaged.
func (c *cache) fill(ctx context.Context, format object.Format, pack records.Pack, base string) error {
	err := parallel(len(pack.Extensions), func(i int) error {
		x := pack.Extensions[i]
		path := base + x
		if err := checkContents(format, path); err == nil {
			return nil // a previous process has downloaded the file already
		} else if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := c.store.Get(ctx, pack.Key(x), path); err != nil {
			return err
		}
		return checkContents(format, path)
	})
	if err == nil {
		err = checkIndex(format, base+".pack", base+".idx", pack.Hash)
	}
	if errors.Is(err, ErrDamaged) {
		for _, x := range pack.Extensions {
			_ = os.Remove(base + x) // remove the file, so that the next call downloads it again
		}
	}
	return err
}

// linkOrCopy creates the file to as a hard link to the file from, or as a copy if from has too many links. If to exists
// already, it has the same contents.
func linkOrCopy(from, to string) error {
	err := os.Link(from, to)
	switch {
	case err == nil, errors.Is(err, fs.ErrExist):
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return err
	}
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	return disk.Replace(disk.OS, to, 0o600, func(dst disk.File) error {
		_, err := dst.CopyFrom(0, src, 0, math.MaxInt64)
		return err
	})
}

// measure records the size of a pack, and removes other packs if the cache is larger than its limit.
func (c *cache) measure(p *cachedPack, pack records.Pack) {
	size := int64(0)
	for _, x := range pack.Extensions {
		if info, err := os.Stat(c.path(p.id) + x); err == nil {
			size += info.Size()
		}
	}
	c.mu.Lock()
	c.bytes += size - p.bytes
	p.bytes = size
	c.mu.Unlock()
	c.trim()
}

// hold returns the entry of a pack and counts the caller as a holder. The pack is not removed before the caller calls
// release.
func (c *cache) hold(id string) *cachedPack {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.place(id)
	p.holders++
	if p.element != nil {
		c.idle.Remove(p.element)
		p.element = nil
	}
	return p
}

// release undoes one call of hold. A pack without holders may be removed.
func (c *cache) release(id string) {
	c.mu.Lock()
	p := c.packs[id]
	p.holders--
	if p.holders == 0 {
		p.element = c.idle.PushFront(p)
	}
	c.mu.Unlock()
	c.trim()
}

// trim removes packs without holders until the cache is within its limit.
func (c *cache) trim() {
	for {
		c.mu.Lock()
		last := c.idle.Back()
		if last == nil || c.bytes <= c.most {
			c.mu.Unlock()
			return
		}
		p := last.Value.(*cachedPack)
		c.idle.Remove(last)
		p.element = nil
		p.holders++
		c.mu.Unlock()
		p.turn <- struct{}{}
		files, _ := disk.Glob(filepath.Dir(c.path(p.id)), filepath.Base(c.path(p.id))+".*")
		for _, f := range files {
			_ = os.Remove(f)
		}
		p.ready = false
		c.mu.Lock()
		c.bytes -= p.bytes
		p.bytes = 0
		p.holders--
		if p.holders == 0 {
			delete(c.packs, p.id)
		}
		c.mu.Unlock()
		<-p.turn // release the turn; a goroutine that waits for it downloads the pack again
	}
}

// overfull reports whether the cache is larger than its limit although all of its packs have holders.
func (c *cache) overfull() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes > c.most && c.idle.Len() == 0
}
