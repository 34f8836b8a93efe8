"""Messages of a forum with known intents, English and Chinese: what happens to posts and people, and texts that say the same differently.

Two kinds. Events name what they are about (`type`, `target`, `actor`), as an application sends them. Notices are texts of people and of
other systems, without a target and under one type: which of them belong together is known only here, as each was written for its topic.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

PEOPLE = ("ana", "bob", "chen", "dora", "emil", "fatma", "goran", "hana", "ivo", "jun", "kofi", "lena")

POSTS = {
    "en": (
        "How to prune roses in winter", "Best bicycle for the city", "My first sourdough bread", "Night train to Vienna",
        "Which telescope for beginners", "Repairing an old radio", "Growing tomatoes on a balcony", "Photos of the eclipse",
        "A budget for students",
    ),
    "zh": (
        "冬天怎样修剪月季", "城市骑行选什么自行车", "我的第一个酸面包", "去成都的夜车", "新手用什么望远镜", "修理一台旧收音机", "阳台上种番茄",
        "日食照片", "学生怎样省钱",
    ),
}  # fmt: skip

EVENTS: dict[str, dict[str, tuple[str, str]]] = {
    "post.liked": {"en": ("likes of {post}", "{n} people liked “{post}”"), "zh": ("likes of {post}", "{n} 人赞了“{post}”")},
    "post.replied": {"en": ("replies to {post}", "{n} replies to “{post}”"), "zh": ("replies to {post}", "“{post}”有 {n} 条回复")},
    "post.bookmarked": {"en": ("bookmarks of {post}", "{n} people saved “{post}”"), "zh": ("bookmarks of {post}", "{n} 人收藏了“{post}”")},
    "user.followed": {"en": ("followers", "{n} people followed you"), "zh": ("followers", "{n} 人关注了你")},
    "user.mentioned": {
        "en": ("mentions in {post}", "{n} people mentioned you in “{post}”"),
        "zh": ("mentions in {post}", "{n} 人在“{post}”中提到了你"),
    },
    "backup.failed": {"en": ("failed backups of {post}", "backup of “{post}” failed {n} times"), "zh": ("failed backups of {post}", "“{post}”备份失败 {n} 次")},
}  # fmt: skip
"""By type: the intent, and the line that a person would write for n of them."""


class Topic(NamedTuple):
    """A topic of notices: its line and texts, in each language."""

    name: str
    line: dict[str, str]
    texts: dict[str, tuple[str, ...]]


TOPICS = (
    Topic("maintenance", {"en": "Maintenance tonight from 22:00", "zh": "今晚22点系统维护"}, {
        "en": ("Scheduled maintenance tonight from 22:00", "The forum will be down for maintenance this evening",
               "Tonight at 22:00 we upgrade the database, expect an outage", "Reminder: downtime tonight for maintenance"),
        "zh": ("今晚22点系统维护", "论坛今晚停机维护一小时", "提醒：今晚22点升级数据库，服务会中断", "今晚维护期间无法登录")}),
    Topic("invoice", {"en": "Your invoice for March is ready", "zh": "三月账单已出"}, {
        "en": ("Your invoice for March is ready", "The March bill can be downloaded now", "Payment of your March invoice is due on Friday",
               "Second notice: invoice for March not paid yet"),
        "zh": ("三月账单已出", "您的三月账单可以下载了", "请在周五前支付三月账单", "再次提醒：三月账单尚未支付")}),
    Topic("parcel", {"en": "Your parcel arrives today", "zh": "您的包裹今天送达"}, {
        "en": ("Your parcel is on its way", "The courier will deliver your parcel today", "Your package has arrived at the pickup station",
               "Delivery of your parcel is delayed by an hour"),
        "zh": ("您的包裹已发出", "快递员今天派送您的包裹", "您的包裹已到达自提点", "您的包裹配送延迟一小时")}),
    Topic("meetup", {"en": "Meetup in the park on Saturday", "zh": "周六公园聚会"}, {
        "en": ("The Saturday meetup is in the park", "Who brings snacks to the meetup on Saturday?", "Meetup on Saturday starts at three",
               "If it rains, Saturday's meetup moves to the library"),
        "zh": ("周六的聚会在公园举行", "周六聚会谁带零食？", "周六聚会三点开始", "如果下雨，周六聚会改在图书馆")}),
    Topic("login", {"en": "New sign-in to your account", "zh": "您的账号有新的登录"}, {
        "en": ("New sign-in to your account from Berlin", "Your account was accessed from a new device", "Was it you who signed in just now?",
               "We blocked a suspicious login to your account"),
        "zh": ("您的账号在上海有新的登录", "您的账号在新设备上登录", "刚才是您本人登录吗？", "我们阻止了一次可疑的账号登录")}),
    Topic("camera", {"en": "Offers for your camera", "zh": "有人想买您的相机"}, {
        "en": ("Is the camera still for sale?", "I would pay 200 for your camera", "Could you send more pictures of the camera you sell?",
               "Can I collect the camera tomorrow?"),
        "zh": ("相机还卖吗？", "您的相机我出两百", "能多发几张要卖的相机的照片吗？", "明天可以来取相机吗？")}),
    Topic("storm", {"en": "Storm warning for tomorrow", "zh": "明天暴风预警"}, {
        "en": ("Storm warning: strong winds tomorrow", "Tomorrow's storm may bring heavy rain and wind", "Schools close tomorrow because of the storm",
               "Weather alert raised to orange: storm expected"),
        "zh": ("暴风预警：明天有大风", "明天的暴风可能带来强降雨", "因为暴风，学校明天停课", "天气预警升级为橙色：预计有暴风")}),
    Topic("disk", {"en": "The disk of db-3 is nearly full", "zh": "db-3 磁盘快满了"}, {
        "en": ("Disk usage on db-3 is above 90 percent", "db-3 is running out of disk space", "Free space on the disk of db-3: 4 percent",
               "Writes on db-3 fail: no space left on disk"),
        "zh": ("db-3 磁盘使用率超过百分之九十", "db-3 磁盘空间不足", "db-3 磁盘剩余空间百分之四", "db-3 写入失败：磁盘没有空间")}),
    Topic("exam", {"en": "The maths exam moves to Thursday", "zh": "数学考试改到周四"}, {
        "en": ("The maths exam was moved to Thursday", "Room change for Thursday's maths exam: B204", "Bring a calculator to the maths exam",
               "Your maths teacher posted notes for the exam"),
        "zh": ("数学考试改到周四", "周四数学考试换教室：B204", "数学考试请带计算器", "数学老师发布了考试复习资料")}),
    Topic("doctor", {"en": "Your dentist appointment on Monday", "zh": "周一的牙医预约"}, {
        "en": ("Your dentist appointment is on Monday at nine", "Please confirm the appointment with your dentist",
               "The dentist asks you to come ten minutes early on Monday", "Dentist: reply NO to cancel Monday's appointment"),
        "zh": ("您周一九点有牙医预约", "请确认您的牙医预约", "牙医请您周一提前十分钟到", "取消周一的牙医预约请回复N")}),
    Topic("football", {"en": "The Reds win the football match 3:1", "zh": "红队足球赛3比1获胜"}, {
        "en": ("Goal! The Reds lead the match 1:0", "Half time in the football match: Reds 2, Blues 1", "Full time: the Reds win the match 3:1",
               "Red card for a Blues player in the match"),
        "zh": ("进球！红队1比0领先", "足球赛中场：红队2，蓝队1", "足球赛结束：红队3比1获胜", "蓝队球员在比赛中被红牌罚下")}),
    Topic("flight", {"en": "Your flight LH 440 is delayed", "zh": "您的航班CA981延误"}, {
        "en": ("Your flight LH 440 is delayed by two hours", "LH 440 departs from gate B12 now", "Boarding of flight LH 440 begins at 14:30",
               "Sorry for the delay of your flight: here is a voucher"),
        "zh": ("您的航班CA981延误两小时", "航班CA981登机口改为B12", "航班CA981十四点半开始登机", "抱歉航班延误，送您一张餐券")}),
    Topic("water", {"en": "No water in the building on Tuesday", "zh": "周二全楼停水"}, {
        "en": ("The water in the building is turned off on Tuesday", "Plumbers work on the pipes on Tuesday, no water until noon",
               "Please store some water before Tuesday", "Water is back in the building"),
        "zh": ("周二全楼停水", "周二检修水管，中午前没有水", "请在周二前储备一些水", "楼里已恢复供水")}),
    Topic("recipe", {"en": "Questions about the soup recipe", "zh": "关于汤的做法的问题"}, {
        "en": ("How much salt goes into the soup?", "Can I make your soup recipe without onions?", "The soup recipe worked, my family loves it",
               "How long do you cook the soup?"),
        "zh": ("汤里要放多少盐？", "您的汤可以不放洋葱吗？", "按这个做法做的汤很成功，家人都喜欢", "这个汤要煮多久？")}),
    Topic("keys", {"en": "Keys were found at the station", "zh": "车站捡到钥匙"}, {
        "en": ("Somebody found keys at the station", "Lost: a bunch of keys near the station", "The keys from the station are at the front desk",
               "Are these your keys? Found at platform 2"),
        "zh": ("有人在车站捡到钥匙", "寻物：车站附近丢了一串钥匙", "车站捡到的钥匙在前台", "这是您的钥匙吗？在2号站台捡到")}),
    Topic("price", {"en": "The price of the headphones dropped", "zh": "耳机降价了"}, {
        "en": ("Price drop: the headphones on your wish list", "Headphones you watch are 20 percent off", "Only today: headphones at 79 euros",
               "The sale of the headphones ends at midnight"),
        "zh": ("降价：您愿望单里的耳机", "您关注的耳机打八折", "仅限今天：耳机七十九元", "耳机特卖午夜结束")}),
    Topic("salary", {"en": "Your payslip for April is available", "zh": "四月工资单已发布"}, {
        "en": ("Your payslip for April is available", "April salary was transferred to your bank", "Human resources corrected your April payslip",
               "Questions about your April salary? Ask payroll"),
        "zh": ("四月工资单已发布", "四月工资已转到您的银行卡", "人事部更正了您的四月工资单", "对四月工资有疑问？请联系财务")}),
    Topic("vote", {"en": "The vote on the new logo ends today", "zh": "新标志投票今天结束"}, {
        "en": ("Vote for the new logo until tonight", "The vote on the logo is nearly tied", "Last chance to vote for our logo",
               "The logo vote is over, see the result"),
        "zh": ("请在今晚前为新标志投票", "标志投票结果接近平局", "最后机会：为我们的标志投票", "标志投票结束，查看结果")}),
)  # fmt: skip


class Labelled(NamedTuple):
    """A message with its intent, and what a person would write for n of that intent."""

    label: str
    line: str
    message: dict[str, Any]


def intents(language: str, *, held: bool) -> list[list[Labelled]]:
    """Every intent of the held-out third, or of the rest, with all of its messages."""
    found = []
    for index, post in enumerate(POSTS[language]):
        if (index % 3 == 2) is held:
            found += [_events(type, post, index, language) for type in EVENTS if type != "user.followed"]
    found.append(_events("user.followed", "", 0, language))
    for index, topic in enumerate(TOPICS):
        if (index % 3 == 2) is held:
            found.append(
                [Labelled(topic.name, topic.line[language], {"type": "notice", "data": {"text": text}}) for text in topic.texts[language]]
            )
    return found


def _events(type: str, post: str, number: int, language: str) -> list[Labelled]:
    label, line = EVENTS[type][language]
    target = {"target": {"kind": "post", "id": str(number), "title": post}} if post else {}
    made = []
    for person in PEOPLE:
        message = {"type": type, **target, **({} if type == "backup.failed" else {"actor": person})}
        made.append(Labelled(label.format(post=post), line.replace("{post}", post), message))
    return made


def draw(language: str, choice: random.Random, *, held: bool) -> Iterator[list[Labelled]]:
    """Sessions without end: some of the intents each, one to five messages of an event and one to four of a notice, shuffled."""
    every = intents(language, held=held)
    events, notices = [one for one in every if len(one) > 4], [one for one in every if len(one) <= 4]
    while True:
        session = []
        for intent in choice.sample(events, 6):
            session += choice.sample(intent, choice.randint(1, 5))
        for intent in choice.sample(notices, 6):
            session += choice.sample(intent, choice.randint(1, 4))
        choice.shuffle(session)
        yield session
