"""Delayed tasks as people do them: a poller on a sorted set, the same with claims in Lua, Celery's ETA, APScheduler.

    python delayed_tasks.py schedule zset|zset-lua|celery     reads [[id, due], ...] lines and schedules them
    python delayed_tasks.py run zset|zset-lua                 runs what is due
    celery -A delayed_tasks:celery_app worker                 the same for Celery
    python delayed_tasks.py run apscheduler                   reads the lines itself: its scheduler lives in one process

REDIS_URL says where Redis is, FIRED_DIR where every worker writes what it ran: lines of id, due time and time. Times are seconds since
the epoch.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import redis
from apscheduler.schedulers.background import BackgroundScheduler
from celery import Celery

REDIS_URL = os.environ["REDIS_URL"]

celery_app = Celery("delayed", broker=REDIS_URL)
celery_app.conf.update(task_ignore_result=True, timezone="UTC")

_lock = threading.Lock()
_files: dict[int, int] = {}


def fire(task: int, due: float) -> None:
    """The task itself: it says that it ran."""
    now, pid = time.time(), os.getpid()
    with _lock:
        if pid not in _files:
            _files[pid] = os.open(Path(os.environ["FIRED_DIR"], f"fired.{pid}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(_files[pid], f"{task} {due} {now}\n".encode())


fire_task = celery_app.task(name="fire")(fire)


def lines() -> Iterator[list[tuple[int, float]]]:
    for line in sys.stdin:
        yield json.loads(line)


def schedule_sorted_set() -> None:
    client = redis.Redis.from_url(REDIS_URL)
    for tasks in lines():
        client.zadd("delayed", {json.dumps({"id": task, "due": due}): due for task, due in tasks})


def schedule_celery() -> None:
    for tasks in lines():
        with celery_app.producer_pool.acquire(block=True) as producer:
            for task, due in tasks:
                fire_task.apply_async((task, due), eta=datetime.fromtimestamp(due, UTC), producer=producer)


def run_sorted_set() -> None:
    """Twice a second, at most 100 due tasks to ten threads: at most 200 tasks a second."""
    client = redis.Redis.from_url(REDIS_URL)

    def handle(raw: bytes) -> None:
        task = json.loads(raw)
        fire(task["id"], task["due"])
        client.zrem("delayed", raw)

    with ThreadPoolExecutor(10) as pool:
        while True:
            for _ in pool.map(handle, client.zrangebyscore("delayed", 0, time.time(), start=0, num=100)):
                pass
            time.sleep(0.5)


def run_sorted_set_lua() -> None:
    """Every 10 ms, all that is due, taken out by one script: nobody else gets it, and a crash here loses it."""
    client = redis.Redis.from_url(REDIS_URL)
    claim = client.register_script(
        "local due = redis.call('ZRANGEBYSCORE', KEYS[1], 0, ARGV[1], 'LIMIT', 0, 1000) "
        "if #due > 0 then redis.call('ZREM', KEYS[1], unpack(due)) end return due"
    )
    while True:
        began = time.time()
        for raw in claim(keys=["delayed"], args=[repr(began)]):
            task = json.loads(raw)
            fire(task["id"], task["due"])
        time.sleep(max(0.0, 0.01 - (time.time() - began)))


def run_apscheduler() -> None:
    scheduler = BackgroundScheduler(timezone="UTC")
    scheduler.start()
    for tasks in lines():
        for task, due in tasks:
            scheduler.add_job(fire, "date", run_date=datetime.fromtimestamp(due, UTC), args=(task, due))
    print("scheduled", flush=True)
    threading.Event().wait()


COMMANDS = {
    ("schedule", "zset"): schedule_sorted_set,
    ("schedule", "zset-lua"): schedule_sorted_set,
    ("schedule", "celery"): schedule_celery,
    ("run", "zset"): run_sorted_set,
    ("run", "zset-lua"): run_sorted_set_lua,
    ("run", "apscheduler"): run_apscheduler,
}

if __name__ == "__main__":
    COMMANDS[sys.argv[1], sys.argv[2]]()
